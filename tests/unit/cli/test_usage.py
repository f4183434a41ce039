"""Help, wrong arguments, and what a person reads when something is not there."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from raylog.base import errors
from raylog.cli.app import cli
from raylog.cli.error_sentences import explain
from raylog.cli.options import pairs, read_properties
from tests.unit.cli.support import raylog, refusal


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command there is."""
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = sorted(commands(cli))


def test_every_promised_command_exists() -> None:
    promised = "start stop status produce consume topic-create topic-list topic-describe topic-delete topic-alter"
    promised += " group-list group-describe group-delete log-dump perf-produce perf-consume"
    assert {tuple(item.split("-")) for item in promised.split()} <= set(ALL)
    assert ("topic", "reassign") in ALL, "of a module of its own"


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    outcome = raylog(*words, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: raylog {' '.join(words)}")


def test_a_command_imports_its_own_module_alone() -> None:
    program = (
        "import sys; sys.argv[1:] = ['metrics', 'alerts']\n"
        "import raylog.cli\n"
        "try: raylog.cli.main()\n"
        "except SystemExit as end: code = end.code\n"
        "others = {name for name in sys.modules if name.startswith('raylog.cli.')}\n"
        "assert code == 0\n"
        "assert not {'raylog.cli.topics', 'raylog.cli.perf', 'raylog.cli.groups'} & others, others\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


def test_administration_loads_neither_producers_nor_consumers() -> None:
    program = (
        "import sys, raylog.client.admin.admin\n"
        "loaded = {'raylog.client.producer.engine', 'raylog.client.consumer.engine'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


def test_help_is_fast_and_loads_neither_ray_nor_rich_nor_a_client() -> None:
    program = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "import raylog.cli\n"
        "try: raylog.cli.main()\n"
        "except SystemExit as end: code = end.code\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'ray', 'rich', 'numpy', 'pandas', 'pyarrow', 'asyncio', 'msgspec'}, loaded\n"
        "assert code == 0\n"
    )
    took_s = []
    for _ in range(3):
        began_s = time.process_time(), time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
        took_s.append(time.perf_counter() - began_s[1])
    assert min(took_s) < 2, "0.1 s on an idle machine; this one may be busy"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("topik", "Unknown command 'topik'; did you mean 'topic'? See `raylog --help`."),
        ("topic creat", "Unknown command 'creat'; did you mean 'create'? See `raylog topic --help`."),
        ("topic create", "Missing argument 'NAME'. See `raylog topic create --help`."),
        ("topic create a --partitons 3", "Did you mean '--partitions'?"),
        ("topic create a --partitions 0", "'--partitions': 0 is not in the range"),
        ("topic create a --config retention.ms", "--config takes key=value, and 'retention.ms' is not of that form."),
        ("topic alter a", "nothing to change: give --partitions N, --config key=value"),
        ("start --config a=1 --brokers none", "'none' is no whole number"),
        ("produce --topic a --key-separator=", "--key-separator needs at least one character."),
        ("produce --topic a --file no-such-file", "no-such-file"),
        ("produce --topic a --bootstrap 127.0.0.1:1", "give --secret-file, or set RAYLOG_SECRET"),
        ("token create --read a --lifetime 12", "'12' is not a time with its unit, such as 90s, 30m, 12h or 7d"),
        ("token create --read a --lifetime 0h", "'0h' is not a time"),
        ("token show", "give a token on the standard input (-), --token-file, or set RAYLOG_TOKEN"),
        ("consume --topic a --offset 3", "--offset needs --partition"),
        ("consume --topic a --partition 0 --offset last", "`earliest` or `latest`, not 'last'"),
        ("consume --topic a --format %x", "--format knows %k %v"),
        ("perf produce --topic a --num-records 1 --throughput -1", "give exactly one of --record-size"),
        ("perf produce --topic a --num-records 1 --throughput 0 --record-size 1", "or -1 for no limit, not 0"),
        ("perf produce --topic a --num-records 1 --throughput -1 --record-size 1 --warmup-records 1", "must be fewer"),
        ("perf consume --topic a", "Missing option '--messages'"),
    ],
)
def test_a_wrong_line_gets_one_sentence_and_the_way_to_its_help(line: str, expected: str) -> None:
    result = refusal(raylog(*line.split(" ")), 2)
    assert expected in result
    assert "--help`." in result


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dashboard", "did you mean `raylog metrics dashboard`?"),
        ("offsets", "did you mean `raylog topic offsets`?"),
        ("help", "Unknown command 'help'; known are: balance, config"),
        ("acl", "Unknown command 'acl'; known are: balance"),
        ("config set retention.ms=5", "by `raylog topic alter NAME --config`"),
        ("topic create --topic x", "The topic is an argument: `raylog topic create TOPIC`."),
        ("group describe --group g", "The group is an argument: `raylog group describe GROUP`."),
        ("group reset-offsets g --to latest --execute --dry-run", "--execute and --dry-run say different things"),
        ("consume --topic t --property print.key=true", "Give `--consumer-props` instead."),
        ("produce --topic t --property parse.key=true", "Give `--producer-props` instead."),
        ("start --config retention.ms=5", "retention.ms is a key of topics"),
        ("produce --topic t --delay soon", "--delay: 'soon' is no delay"),
        ("produce --topic t --json --key k", "with --json the lines say what key and value are"),
        ("produce --topic t --key k --key-separator :", "give one of them"),
        ("produce --topic t --producer-props value.serializer=json", "value.serializer has no meaning here"),
        ("consume --topic t --consumer-props value.deserializer=string", "value.deserializer has no meaning here"),
        ("produce", "Missing option '--topic'"),
        ("consume", "Missing option '--topic', or --pattern"),
        ("consume --topic t --pattern x", "give --topic or --pattern"),
        ("consume --pattern (", "'(' is no regular expression"),
        ("consume --topic a --topic b --partition 0", "--partition is of one topic"),
        ("consume --topic t --group g --offset -5", "`raylog group reset-offsets g` moves it"),
        ("consume --topic t --from-time 2026-01-01", "has no zone"),
        ("consume --topic t --from-time 5 --from-beginning", "give one of them"),
    ],
)
def test_what_newcomers_type_is_answered_with_what_to_type(line: str, expected: str) -> None:
    outcome = raylog(*line.split())
    assert expected in outcome.err, outcome
    assert len(outcome.err.splitlines()) == 1
    assert outcome.code in (1, 2)


def test_help_lists_every_command_whole_and_by_subject() -> None:
    listed = raylog("--help").out
    assert "...\n" not in listed.partition("Cluster:")[2]
    assert listed.index("Cluster:") < listed.index("Topics and records:") < listed.index("Readers and writers:")
    assert "\nCommands:" not in listed, "name a new command in one of the sections"
    assert {name for name in cli.commands if f"\n  {name} " not in listed} == set()


def test_the_options_of_the_cluster_have_a_section_of_their_own() -> None:
    listed = raylog("topic", "create", "--help").out
    own, found, common = listed.partition("Which cluster:")
    assert found
    assert "--partitions" in own
    assert "--bootstrap" not in own
    assert {"--bootstrap", "--secret-file", "--token-file", "--address", "--data-dir"} <= set(
        common.replace(",", " ").split()
    )


PROGRAM = "import sys; sys.argv[0] = 'raylog'; from raylog.cli import main; main()"


@pytest.mark.parametrize("words", [["--help"], ["metrics", "alerts"]], ids=" ".join)
def test_a_closed_pipe_ends_the_command_as_sigpipe_would(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        command = [sys.executable, "-c", PROGRAM, *words]
        run = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (141, b"")


def test_a_closed_standard_output_is_an_error_of_one_sentence() -> None:
    command = ["bash", "-c", f'"{sys.executable}" -c "{PROGRAM}" metrics alerts >&-']
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (1, "raylog: Bad file descriptor.\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_standard_output_without_room_is_named(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    for words in (["metrics", "alerts"], ["--help"], ["features", "--help"]):
        with Path("/dev/full").open("wb") as full:
            command = [sys.executable, "-c", PROGRAM, *words]
            run = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60, check=False
            )
        line = "raylog: standard output: No space left on device. Free some space, and try again.\n"
        assert (run.returncode, run.stderr) == (1, line)


def test_an_interrupt_while_modules_are_imported_shows_no_traceback() -> None:
    program = (
        "import sys, builtins; real = builtins.__import__\n"
        "def stop(name, *more):\n"
        "    if name == 'raylog.cli.app': raise KeyboardInterrupt\n"
        "    return real(name, *more)\n"
        "builtins.__import__ = stop\n" + PROGRAM
    )
    command = [sys.executable, "-c", program, "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (130, "Interrupted.\n")


def test_the_package_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-m", "raylog", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.startswith("raylog, ")


def test_without_a_cluster_the_way_to_one_is_named(tmp_path: Path) -> None:
    nothing_here = {"RAY_TMPDIR": str(tmp_path)}
    for words in (["status"], ["topic", "list"], ["stop"], ["produce", "--topic", "a"]):
        result = refusal(raylog(*words, "--data-dir", str(tmp_path), **nothing_here), 1)
        assert "run `raylog start`, or give --bootstrap" in result


def test_a_start_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    words = ["start", "--data-dir", str(tmp_path / "other"), "--address", "127.0.0.1:1"]
    assert "No Ray cluster answers at 127.0.0.1:1" in raylog(*words).err
    assert not (tmp_path / "other").exists()
    (tmp_path / "kept").mkdir()
    raylog("start", "--data-dir", str(tmp_path / "kept"), "--address", "127.0.0.1:1")
    assert (tmp_path / "kept").exists()


def test_a_data_directory_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/full", str(tmp_path / "pipe")):
        for command in ("start", "status"):
            assert f"'{path}' is no directory" in refusal(raylog(command, "--data-dir", path), 2)


def test_a_stopped_ray_is_detected_without_a_wait(tmp_path: Path) -> None:
    result = refusal(raylog("status", "--address", "127.0.0.1:1", "--data-dir", str(tmp_path)), 1)
    assert "No Ray cluster answers at 127.0.0.1:1" in result


def test_a_secret_file_without_a_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hello\n")
    result = refusal(raylog("topic", "list", "--bootstrap", "127.0.0.1:1", "--secret-file", str(path)), 2)
    assert "holds no secret in hexadecimal digits" in result


def test_debug_shows_where_an_error_came_from() -> None:
    plain = raylog("topic", "list", "--bootstrap", "127.0.0.1:1", RAYLOG_SECRET="00ff" * 8)
    assert "raylog status" in refusal(plain, 1)
    shown = raylog("topic", "list", "--bootstrap", "127.0.0.1:1", "--debug", RAYLOG_SECRET="00ff" * 8)
    assert shown.code == 1
    assert "Traceback" in shown.err


def test_key_value_options_take_values_until_the_next_option() -> None:
    result = raylog("topic", "create", "--config", "a=1", "b=2", "name", "--bootstrap", "127.0.0.1:1")
    assert "RAYLOG_SECRET" in result.err, "the line itself is right, the secret is what is missing"
    assert pairs("--config", ["a=1", "b=x=y", " c = "]) == {"a": "1", "b": "x=y", "c": ""}
    assert "--config" in raylog("topic", "create", "a", "--config").err


def test_properties_files_are_read_as_kafkas_tools_read_them(tmp_path: Path) -> None:
    path = tmp_path / "producer.properties"
    path.write_text("# comment\n\nacks=all\n linger.ms = 5 \n! another\n")
    assert read_properties(path) == {"acks": "all", "linger.ms": "5"}
    path.write_text("acks=all\nnonsense\n")
    with pytest.raises(click.UsageError, match="line 2 of"):
        read_properties(path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.UnknownTopicOrPartition("There is no topic 'a'"), "There is no topic 'a'. `raylog topic list` shows"),
        (errors.NoClusterFound(), "No Raylog cluster was found here; run `raylog start`"),
        (errors.NonEmptyGroup("Group 'g' has members."), "`raylog group describe` names them."),
        (errors.GroupIdNotFound("There is no group 'g'; list_groups() helps."), "There is no group 'g'. `raylog group"),
        (
            errors.TransactionalIdNotFound("There is no transactional id 't'; list_transactions() names them all."),
            "There is no transactional id 't'. `raylog transaction list` shows",
        ),
        (FileNotFoundError(2, "No such file or directory", "data"), "data: No such file or directory."),
        (PermissionError(13, "Permission denied", "data"), "data: Permission denied."),
        (TimeoutError("No broker answered"), "No broker answered. `raylog status` shows what is offline."),
        (ValueError("one\ntwo"), "This should not happen: ValueError: one - run it again with --debug"),
    ],
)
def test_an_error_becomes_a_sentence_with_the_next_step(error: Exception, expected: str) -> None:
    result = explain(error)
    assert result.startswith(expected) or expected in result
    assert "\n" not in result
