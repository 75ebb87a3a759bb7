"""`python -m builder`: the command line. See `builder/cli.py`."""

from builder.cli import entry_point

if __name__ == "__main__":
    entry_point()
