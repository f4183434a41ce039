"""The command line of Raylog: `main` is what the command `raylog` runs."""


def main() -> None:
    """Run the command line on the arguments of this process, and end the process with its exit code."""
    try:
        from raylog.cli.app import cli
    except KeyboardInterrupt:  # while the modules are imported
        import sys

        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    cli.main(prog_name="raylog")
