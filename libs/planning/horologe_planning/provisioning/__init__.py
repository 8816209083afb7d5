"""Provisioning: workloads with rates and SLOs to shares of GPUs at the least cost (iGniter section 4.1).

Three workloads on a V100, at a margin of 1. The examples of the modules here are about them:

    workload   requests/s   SLO     batch   share alone   share beside the others
    alexnet    500          15 ms   4       10%           12.5%
    resnet50   400          40 ms   7       27.5%         30%
    vgg19      200          60 ms   6       35%           37.5%

A workload needs a larger share beside neighbours, because all of them use the same cache, PCIe bus and power.
"""
