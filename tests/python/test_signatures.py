"""`verify --signers` accepts keys and signatures made by ssh-keygen."""

import shutil
import subprocess

import pytest

from support import CLEAN, run_json, run_ok, run_tool

SPEC = """
shardinit: 1
name: m
dtype: f32
mesh: {axes: {x: 2}}
modules:
  w: {shape: [40, 50], shard: [x], init: {normal: {std: 1}}}
"""
KINDS = {"ed25519": ["-t", "ed25519"], "ecdsa": ["-t", "ecdsa", "-b", "384"], "rsa": ["-t", "rsa", "-b", "2048"]}


def sign(key, file, namespace="shardinit"):
    file.with_name(file.name + ".sig").unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", key, file], check=True,
                   stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Returns a folder with a key of each kind, `stranger`, and `signers`, which trusts all keys but `stranger`."""
    folder = tmp_path_factory.mktemp("keys")
    lines = ["# who may sign"]
    for name, options in {**KINDS, "stranger": KINDS["ed25519"]}.items():
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-C", "", *options, "-f", folder / name], check=True)
        if name != "stranger":
            lines.append(f"{name}@example.org,other@example.org {(folder / f'{name}.pub').read_text().strip()}")
    (folder / "signers").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "spec.yaml").write_text(SPEC)
    run_ok("gen", folder / "spec.yaml", "-o", folder / "checkpoint")
    run_ok("export", folder / "spec.yaml", "--to", "safetensors", "-o", folder / "export")
    return folder


@pytest.fixture(params=["checkpoint", "export"])
def signed(request, made, keys, tmp_path):
    """Returns a folder and its signed file."""
    folder = shutil.copytree(made / request.param, tmp_path / "folder")
    statement = folder / ("manifest.json" if request.param == "checkpoint" else "shardinit-export.json")
    sign(keys / "ed25519", statement)
    return folder, statement


@pytest.mark.parametrize("kind", KINDS)
def test_verify_accepts_every_kind_of_key(kind, signed, keys):
    folder, statement = signed
    sign(keys / kind, statement)
    result = run_ok("verify", folder, "--strict", "--signers", keys / "signers")
    assert f"; signed by {kind}@example.org\n" in result.stdout and not result.stderr
    assert run_json("verify", folder, "--signers", keys / "signers")["signer"] == f"{kind}@example.org"
    assert "signer" not in run_json("verify", folder)


def refusal(*arguments, code=1):
    result = run_tool("verify", *arguments)
    assert result.returncode == code, result.stderr
    return result.stderr


def test_verify_rejects_an_untrusted_signer(signed, keys):
    folder, statement = signed
    sign(keys / "stranger", statement)
    assert f"is intact, but its {statement.name} is not signed by anybody in " in refusal(
        folder, "--signers", keys / "signers")


def test_verify_rejects_a_missing_signature(signed, keys):
    folder, statement = signed
    statement.with_name(statement.name + ".sig").unlink()
    assert "is not signed: there is no " in refusal(folder, "--signers", keys / "signers")


def test_verify_rejects_a_signature_for_another_namespace(signed, keys):
    folder, statement = signed
    sign(keys / "ed25519", statement, namespace="git")
    assert "is not what ed25519@example.org signed with the namespace `shardinit`" in refusal(
        folder, "--signers", keys / "signers")


def test_verify_rejects_the_signature_of_another_folder(keys, made, tmp_path):
    """A consistent checkpoint with other values is rejected if it has another checkpoint's signature."""
    other = tmp_path / "other"
    run_ok("gen", made / "spec.yaml", "--set", "seed=1", "-o", other)
    run_ok("verify", other)
    sign(keys / "ed25519", other / "manifest.json")
    run_ok("verify", other, "--signers", keys / "signers")
    folder = shutil.copytree(made / "checkpoint", tmp_path / "folder")
    shutil.copy(other / "manifest.json.sig", folder)
    assert "is not what ed25519@example.org signed" in refusal(folder, "--signers", keys / "signers")
    run_ok("verify", other, "--signers", keys / "signers", "--signature", folder / "manifest.json.sig")


def test_verify_checks_every_byte_of_the_signature(signed, keys):
    folder, statement = signed
    signature = statement.with_name(statement.name + ".sig")
    good = signature.read_bytes()
    body = range(good.index(b"\n") + 1, good.index(b"\n-----END"))
    for at in [i for i in body if good[i] != 0x0A][::7]:
        bad = bytearray(good)
        bad[at] = ord("A") if good[at] != ord("A") else ord("B")
        signature.write_bytes(bad)
        refusal(folder, "--signers", keys / "signers")
    signature.write_bytes(b"")
    refusal(folder, "--signers", keys / "signers")


def test_verify_finds_damage_despite_a_signature(made, keys, tmp_path):
    folder = shutil.copytree(made / "checkpoint", tmp_path / "folder")
    sign(keys / "ed25519", folder / "manifest.json")
    with open(folder / "ranks/rank-00001.h5", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    assert "is damaged" in refusal(folder, "--signers", keys / "signers")
    (folder / "ranks/rank-00000.json").unlink()
    assert "is damaged" in refusal(folder, "--signers", keys / "signers")


def test_verify_rejects_wrong_signature_options(signed, keys, tmp_path, made):
    folder, statement = signed
    signature = statement.with_name(statement.name + ".sig")
    assert "without trusted keys" in refusal(folder, "--signature", signature, code=2)
    assert "missing" in refusal(folder, "--signers", tmp_path / "missing", code=2)
    assert "cannot be read from buckets" in refusal("s3://bucket/x", "--signers", keys / "signers", code=2)
    if statement.name != "manifest.json":
        assert "checks the manifest" in refusal(folder, "--signers", keys / "signers", "--spec",
                                                  made / "spec.yaml", code=2)
    else:
        run_ok("verify", folder, "--signers", keys / "signers", "--spec", made / "spec.yaml")
    assert "`ssh-keygen` is not installed" in refusal_without_path(folder, "--signers", keys / "signers")


def refusal_without_path(*arguments):
    result = run_tool("verify", *arguments, env={**CLEAN, "PATH": "/nowhere"})
    assert result.returncode == 2, result.stderr
    return result.stderr


def test_equal_values_do_not_replace_a_signature(made, keys):
    """Matching the values of a spec does not replace a signature."""
    words = ["verify", made / "checkpoint", "--spec", made / "spec.yaml", "--signers", keys / "signers"]
    (made / "checkpoint/manifest.json.sig").unlink(missing_ok=True)
    done = run_tool(*words)
    assert done.returncode == 1 and "is not signed" in done.stderr and "equal to m" in done.stdout, done
    sign(keys / "stranger", made / "checkpoint/manifest.json")
    assert run_tool(*words).returncode == 1
    # All problems are reported, in whatever order they are found.
    (made / "checkpoint/notes").write_text("mine")
    for spec in [], words[2:4], [*words[2:4], "--set", "seed=1"]:
        done = run_tool(*words[:2], *spec, *words[4:], "--strict")
        assert done.returncode == 1 and "1 name in it is foreign, which `--strict` forbids" in done.stderr
        assert "is intact, but its manifest.json " in done.stderr
        assert ("differs from m" in done.stderr) == ("--set" in spec)
    (made / "checkpoint/notes").unlink()
    sign(keys / "rsa", made / "checkpoint/manifest.json")
    run_ok(*words)
    (made / "checkpoint/manifest.json.sig").unlink()


@pytest.mark.parametrize("script, how", [
    ("kill -9 $$", "was killed by signal 9"), ("exit 1", "exited with status 1"),
    ("exit 255", "exited with status 255"),
    ("exit 0", "exited with status 0"),
    ("case $2 in find*) echo a;; *) kill -11 $$;; esac", "was killed by signal 11")])
def test_ssh_keygen_without_verdict_is_not_a_forgery(script, how, signed, keys, tmp_path):
    """If ssh-keygen ends without a verdict, `verify` exits with 3 and does not call the signature forged."""
    folder, _ = signed
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh-keygen").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin/ssh-keygen").chmod(0o755)
    done = run_tool("verify", folder, "--signers", keys / "signers",
                    env={**CLEAN, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert done.returncode == 3 and f"cannot check the signature: ssh-keygen {how}" in done.stderr, done


@pytest.mark.parametrize("principals, signer", [
    ("!x@y,a@y", "a@y"), ("!a@y,a@y,b@y", "b@y"), ("!a@y,a@y", None), ("!a@y", None), ("a@y,!b@y", "a@y")])
def test_negated_patterns_exclude_signers(principals, signer, signed, keys, tmp_path):
    """A negated pattern excludes signers of a key."""
    folder, _ = signed
    (tmp_path / "signers").write_text(f"{principals} {(keys / 'ed25519.pub').read_text()}")
    done = run_tool("verify", folder, "--signers", tmp_path / "signers")
    if signer:
        assert done.returncode == 0 and f"; signed by {signer}\n" in done.stdout, done
    else:
        assert done.returncode == 1 and "signed by" not in done.stdout and "; signed by !" not in done.stderr, done
