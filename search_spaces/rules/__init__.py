"""Rules that exclude layouts: general ones, the engines', and those of Parlay's trainer."""
