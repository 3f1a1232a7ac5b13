"""``python -m treering``: the command line."""

from treering.cli.main import main

if __name__ == "__main__":
    main()
