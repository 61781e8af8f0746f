"""What `python -m hybrid_des` runs."""

from hybrid_des.cli.main import program

if __name__ == "__main__":
    program()
