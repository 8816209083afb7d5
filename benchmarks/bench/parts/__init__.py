"""Parts of `spine.py`. Each measures some promises and returns them as bars."""
