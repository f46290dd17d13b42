"""Life of a search: create, drive, cancel, notify, shut down; the driver as a job."""
