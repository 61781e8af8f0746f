"""Entry point of `python -m hybrid_des`."""

from hybrid_des.interface.cli.main import program

if __name__ == "__main__":
    program()
