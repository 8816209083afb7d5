"""Memory for weights in pages: an address range per model that stays, physical pages that come and go."""
