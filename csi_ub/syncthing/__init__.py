"""Syncthing as a library would be: its daemon, its REST interface, its device ids."""
