"""The command line of Raylog: `main` is what the command `raylog` runs."""


def main() -> None:
    """Run the command line on the arguments of this process, and end the process with its exit code."""
    from raylog.cli.app import cli

    cli.main(prog_name="raylog")
