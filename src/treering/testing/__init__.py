"""The public test kit: for authors of engines and stores, and for whoever wants to see a promise kept."""
