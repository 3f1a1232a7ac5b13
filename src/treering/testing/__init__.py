"""The public test kit for authors of engines and blob stores. Start with `engine_suite` or `blobs_suite`."""
