"""One file a claim, each side by side with its peer in the same run. ``make bench`` runs them all."""
