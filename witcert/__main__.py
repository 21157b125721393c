"""``python -m witcert``."""

from witcert.cli import main

if __name__ == "__main__":
    main()
