"""What the SQL engines share: one set of statements and decisions, two thin drivers."""
