"""`python -m kaged.cli`, the form in which a daemon is started in the background."""

from kaged.cli.main import main

if __name__ == "__main__":
    main()
