"""Secrets by name and by form, and names and values that only resemble them."""

from __future__ import annotations

import pytest

from search_spaces.schema.unsafe_text import hide_secrets, looks_secret

RANDOM = "0123456789abcdefghijABCDEFGHIJklmnopq"
"""Part of values that have the form of a token."""


@pytest.mark.bad_input(27)
@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    "name",
    [
        *("password", "passphrase", "token", "api_key", "credentials", "dbPassword", "apiKey", "wandb-token"),
        *("PGPASSWORD", "DB_PASS", "MYSQL_PWD", "SSHPASS", "AUTHTOKEN", "HF_TOKEN", "REDIS_PASSWORD_2"),
        *("PRIVATE_KEY", "SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "OPENAI_KEY", "GITHUB_PAT"),
        *("AccountKey", "client_secret", "SECRET_SALT", "AWS_CREDS", "--hf-token", "--db-password"),
    ],
)
def test_a_secret_is_known_by_its_name(name: str):
    assert looks_secret("hunter2", name)
    for text in (f"{name}=hunter2", f"--export=ALL,{name}=hunter2", f"--env={name}=hunter2 --no-home"):
        assert "hunter2" not in hide_secrets(text)


@pytest.mark.bad_input(27)
@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    "value",
    [
        "https://hooks.slack.com/services/T000/B000/XXXXXXXXXXXX",
        f"AIza{RANDOM[:35]}",
        f"nvapi-{RANDOM}",
        "https://data.example/part?token=hunter2hunter2",
        "https://a.blob.core.windows.net/c?sv=2024&sig=hunter2hunter2",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2hunter2==",
        "Authorization: Bearer hunter2hunter2",
        "--wandb-token hunter2",
        '{"password": "hunter2"}',
    ],
)
def test_a_secret_is_known_by_its_form(value: str):
    assert looks_secret(value, "note")
    assert "hunter2" not in hide_secrets(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("token_file", "/data/corpus.bin"), ("tokens", "/data"), ("num_tokens", "4096"), ("max_tokens", "131072")),
        *(("--tokenizer-type", "GPT2BPETokenizer"), ("--moe-token-dispatcher-type", "alltoall")),
        *(("num_key_value_heads", "8"), ("text_key", "content"), ("--json-keys", "text"), ("NCCL_IB_PKEY", "0x8001")),
        *(("--calculate-per-token-loss", "true"), ("eos_token", "<|endoftext|>"), ("pad_token", "[PAD]")),
        *(("eos_token", "128001"), ("--mask-token", "128002"), ("note", "Basic configuration")),
        *(("data", "/mnt/disk-of-the-whole-project/pile"), ("words", "a forward_pass=everything")),
        *(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"), ("objective", "tokens_per_sec")),
        *(("PWD", "/home/ada"), ("OLDPWD", "/home/ada"), ("--pwd", "/workspace"), ("PGPASSFILE", "/home/ada/.pgpass")),
        *(("api_key_file", "/home/ada/.key"), ("secret_path", "/run/secrets"), ("use_token", "true"), (None, "None")),
        *(("url", "postgresql://parlay@db/ledger"), ("NVTE_BYPASS", "all"), ("comment", "a secret remark")),
        *(("--use-auth-token", "--lr"), ("words", "--use-auth-token --lr 0.1")),
        *(("XLA_FLAGS", "--xla_disable_hlo_passes=fusion"), ("words", "--micro-batch {micro_batch_size}")),
    ],
)
def test_what_only_resembles_a_secret_is_none(name: str | None, value: str):
    assert not looks_secret(value, name)
    assert not looks_secret(f"{name}={value}", None)


def test_a_secret_that_begins_as_a_harmless_value_is_one():
    assert looks_secret("no one else knows this", "passphrase")
