"""Other trainers: a layout as their arguments or configuration, such files read back, their logs parsed. Torch-free."""
