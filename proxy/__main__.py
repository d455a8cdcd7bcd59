"""The command line `ackstream`. Each command's modules are imported when it is run: those of `serve` take
about a second."""

from __future__ import annotations

from difflib import get_close_matches

import click

from proxy import __version__

COMMANDS = ("consume", "doctor", "enqueue", "export", "migrate", "peek", "serve", "top")


class Commands(click.Group):
    """The commands, by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name; None if there is none."""
        match cmd_name:
            case "serve":
                from proxy.serve import serve as command  # noqa: PLC0415
            case "consume":
                from proxy.commands.consume import consume as command  # noqa: PLC0415
            case "doctor":
                from proxy.commands.doctor import doctor as command  # noqa: PLC0415
            case "enqueue":
                from proxy.commands.enqueue import enqueue as command  # noqa: PLC0415
            case "export":
                from proxy.commands.export import export as command  # noqa: PLC0415
            case "migrate":
                from proxy.commands.migrate import migrate as command  # noqa: PLC0415
            case "peek":
                from proxy.commands.export import peek as command  # noqa: PLC0415
            case "top":
                from proxy.commands.top import top as command  # noqa: PLC0415
            case _:
                return None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, its name and the other arguments. The error about a name that does not exist has the
        nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if nearest := get_close_matches(args[0], COMMANDS, 1):
                ctx.fail(f"{error.message} Did you mean '{nearest[0]}'?")
            raise


@click.command(cls=Commands)
@click.version_option(__version__, prog_name="ackstream")
def main() -> None:
    """Message queues in the MySQL you already have."""


if __name__ == "__main__":
    main()
