"""Blob stores: immutable named bytes, and small ones updated by compare-and-swap.

`location.open_blobs` opens a store by its URL: a local folder, or a bucket of an S3-compatible server.
"""
