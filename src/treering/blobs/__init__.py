"""Blob stores: immutable named bytes, and small ones that move by compare-and-swap.

`location.open_blobs` chooses by URL: a folder of this machine, or a bucket behind the S3 protocol.
"""
