"""Rules that a layout has to keep: any layout's, the engines' and the trainers'."""
