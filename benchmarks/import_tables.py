"""Import of the published tables from their authors' files.

    python -m benchmarks.import_tables DOWNLOAD FOLDER [--compare TABLES]

DOWNLOAD is a folder with any of these downloaded files; their tables are written into FOLDER, which is created and must
not have them yet:

    ground_truth_multi.csv   github.com/VIA-Research/vTrain, data/               -> vtrain_3b_18b.csv
    ground_truth_single.csv  the same                                            -> vtrain_single_node.csv
    benchmarks_interactive.html  huggingface.co/spaces/nanotron/ultrascale-playbook, assets/data/benchmarks/
                                                                                 -> nanotron_1b_8b.csv
    pp_comm_bandwidth.html tp_scaling.html tp_sp_scaling.html dp_scaling.html    the same, all four
                                                                                 -> nanotron_comm_and_scaling.csv
    gpt175b_megatron_16N_newcomm-405287.o   github.com/sajal-vt/Megatron-DeepSpeed-ORNL, branch frontier-sd, logs/
                                            -> frontier_175b_log_memory_by_rank.csv, frontier_175b_log_stage_params.csv

With --compare each table is compared row by row with the one of the same name in TABLES; on a difference the first
differing rows are shown, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from benchmarks.import_sources import SOURCES, Source
from search_spaces.errors import InputError
from trials.files.folders import write_text
from trials.files.text import plural

_SHOWN = 5


def main() -> None:
    arguments = _arguments()
    made = dict(build_table(source, arguments.download) for source in SOURCES if is_there(source, arguments.download))
    if not made:
        sys.exit(f"{arguments.download} holds all files of no table: --help lists them")
    write_new(arguments.folder, made)
    for name, text in made.items():
        print(f"{arguments.folder / name}: {plural(len(rows_of(text)) - 1, 'row')}")
    if arguments.compare is not None:
        sys.exit(_compared(made, arguments.compare))


def is_there(source: Source, download: Path) -> bool:
    """True if the download has all files of a table."""
    return all((download / name).exists() for name in source.files)


def build_table(source: Source, download: Path) -> tuple[str, str]:
    """Name and text of a table; InputError where a file is not as published."""
    try:
        texts = [(download / name).read_text(encoding="utf-8") for name in source.files]
        table = source.build_table(*texts)
        if len(rows_of(table)) < 2:
            raise ValueError("it has no row")
        return source.table, table
    except (LookupError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0] if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError.of(
            "file",
            f"is not what is published under this name: {why}",
            file=str(download / source.files[0]),
            fix="download it again, as it is",
        ) from error


def write_new(folder: Path, tables: Mapping[str, str]) -> None:
    """Write all tables; none where one of them exists already."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [name for name in tables if (folder / name).exists()]
    if there:
        raise InputError.of("output", f"{folder / there[0]} is there already", fix="name another folder")
    for name, text in tables.items():
        write_text(folder / name, text)


def rows_of(text: str) -> list[list[str]]:
    """Header and rows of a table, without its comments."""
    return list(csv.reader(line for line in text.splitlines() if not line.startswith("#")))


def differences(made: str, known: str) -> list[str]:
    """Differences of two tables, row by row; empty where they are equal in content and order."""
    pairs = enumerate(zip_longest(rows_of(made), rows_of(known)))
    return [f"row {n}: made {mine}, known {theirs}" for n, (mine, theirs) in pairs if mine != theirs]


def _compared(made: Mapping[str, str], tables: Path) -> int:
    exit_code = 0
    for name, text in made.items():
        known = tables / name
        if not known.exists():
            print(f"{name}: {known} is not there, nothing to compare with")
            continue
        found = differences(text, known.read_text(encoding="utf-8"))
        print(f"{name}: {plural(len(found), 'row')} unlike {known}" if found else f"{name}: the rows of {known}")
        for line in found[:_SHOWN]:
            print(f"  {line}")
        exit_code = exit_code or int(bool(found))
    return exit_code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0] if __doc__ else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=__doc__,
    )
    parser.add_argument("download", type=Path, metavar="DOWNLOAD")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--compare", type=Path, metavar="TABLES")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError) as error:
        sys.exit(str(error))
