import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.hostlist import MAX_HOSTS, HostListError, compress, expand

names = st.from_regex(r"[a-z]{1,4}[0-9]{0,4}(-ib[0-9]{1,2})?(\.[a-z]{2})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("n[1-4,7]", ["n1", "n2", "n3", "n4", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]-ib[0-1]", ["r1-ib0", "r1-ib1", "r2-ib0", "r2-ib1"]),
        ("n[1-2],login, gpu[3].site", ["n1", "n2", "login", "gpu3.site"]),
        ("", []),
    ],
)
def test_a_host_list_expands_in_its_own_order(text, hosts):
    assert list(expand(text)) == hosts


WRONG = (
    "n[1-",
    "n[a]",
    "n[2-1]",
    "a,,b",
    "-x",
    "$(x)",
    "n\n1",
)
TOO_LONG = ("n[1-100001]", "n[1-999999999]", "a[1-400]b[1-400]", "n[1-60000],m[1-60000]")


@pytest.mark.bad_input(29)
@pytest.mark.parametrize("text", [*WRONG, *TOO_LONG])
def test_what_is_no_host_list_is_refused_and_a_list_beyond_any_cluster_before_it_costs_memory(text):
    with pytest.raises(HostListError, match=str(MAX_HOSTS) if text in TOO_LONG else ""):
        expand(text)
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["n2", "n1", "n3", "n7", "n1"], "n[1-3,7]"),
        (["n9", "n10"], "n[9-10]"),
        (["r1-ib0", "r1-ib1", "r2-ib0"], "r1-ib[0-1],r2-ib0"),
    ],
)
def test_names_are_compressed_by_their_last_number(hosts, text):
    assert compress(hosts) == text


@pytest.mark.slow
@given(st.lists(names, max_size=40))
def test_compressing_loses_and_invents_no_host(hosts):
    expanded = expand(compress(hosts))
    assert sorted(expanded) == sorted(set(hosts))


@given(st.text())
def test_any_text_expands_or_is_refused(text):
    try:
        hosts = expand(text)
    except HostListError:
        return
    assert all("\n" not in host and " " not in host for host in hosts)
