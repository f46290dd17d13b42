"""Local launcher: ranks as processes of this machine."""
