"""`jobs` prints scripts and documents that work for any characters in the user's arguments. These tests run the printed
commands; tests/engines runs the engines that Debian packages."""

import json
import os
import pathlib
import random
import re
import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml
from support import BINARY, CLEAN, run_json, run_ok, run_tool, tree_of

ENGINES = ["slurm", "kubernetes", "mpi", "batch", "argo", "skypilot", "object-store"]
SHELL = ["slurm", "slurm --array", "mpi"]
CONTAINERS = ["kubernetes", "argo", "skypilot", "batch"]
SPEC = """
shardinit: 1
name: Jobs_of.a-Model
seed: 3
dtype: f32
mesh: {axes: {data: 2, tensor: 3}}
rules: [{rows: tensor}]
modules:
  a: {shape: [66, 32], axes: [rows, null], init: {normal: {std: 1}}}
  b: {shape: [7], init: ones}
"""
# Text that a shell, YAML or a template would interpret.
AWKWARD = ["a b", "it's", 'say "x"', "$HOME", "$(touch hacked)", "`touch hacked`", "$$(JOB_COMPLETION_INDEX)", "a\nb",
           "a\n\n  b\n", "\ttab", "#no",
           "*", "~", "-n", "{a: [b", "%s\\n\\", "ü ☃ 😀", "\x85next\u2028line", "x\x7f\x1b[0m", "; exit 3",
           "END_OF_JSON", "!x & y | z", "&a", "null"]


def required_options(engine, tmp_path):
    return {"kubernetes": ["--image", "registry/shardinit:1", "--volume", "shared"],
            "argo": ["--image", "registry/shardinit:1", "--volume", "shared"],
            "skypilot": ["--image", "registry/shardinit:1", "--volume", "shared"],
            "batch": ["--image", "registry/shardinit:1", "--volume", "fs-0123abcd", "--queue", "a queue's"]}.get(engine,
                                                                                                                 []) \
        + (["--mount", tmp_path] if engine in CONTAINERS else [])


def jobs(engine, spec, out, *options, tmp_path, **how):
    words = engine.split()
    return run_ok("jobs", words[0], spec, "-o", out, *words[1:], *required_options(words[0], tmp_path), *options,
                  **how).stdout


def write_program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def run_script(text, tmp_path, **env):
    """Runs a script in another folder than the one it was made in, with the programs of `tmp_path`/bin first in
    PATH."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    script = tmp_path / "job.sh"
    script.write_text(text)
    path = f"{tmp_path / 'bin'}:{BINARY.parent}:{os.environ['PATH']}"
    return subprocess.run(["sh", script], cwd=elsewhere, env={**CLEAN, "PATH": path, **env}, text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# A fake `shardinit` that writes its arguments to a file, and a fake launcher that starts one task.
SAYS_WORDS = 'for word; do printf "%s\\0" "$word"; done >> "$SAID"\nprintf "\\1" >> "$SAID"\n'
STARTS_ONE = {
    "slurm": ("srun", 'while [ "${1#-}" != "$1" ]; do shift; done\nSLURM_PROCID=0 SLURM_NTASKS=1 exec "$@"\n'),
    "mpi": ("mpirun", 'if [ "$1" = --version ]; then echo HYDRA; exit; fi\nwhile [ "$1" != sh ]; do shift; done\n'
                      'PMI_RANK=0 PMI_SIZE=1 exec "$@"\n')}


def words_said(tmp_path):
    return [run.split("\0")[:-1] for run in (tmp_path / "said").read_text().split("\1")[:-1]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("engine", SHELL + ["object-store"])
def test_job_scripts_pass_arguments_unchanged(tmp_path, engine, seed):
    """sbatch's shell and srun, or mpirun, pass on exactly the arguments given to `jobs`."""
    draw = random.Random(f"{engine} {seed}")
    parts = [p.replace("/", "") for p in draw.sample(AWKWARD, len(AWKWARD))]
    folder = tmp_path / parts[0]
    folder.mkdir()
    spec = folder / f"{parts[1]}.yaml"
    spec.write_text(SPEC.replace("seed: 3", "vars: {t: {text: x}}"))
    out = f"r:{parts[2]}" if engine == "object-store" else folder / parts[2]
    sets = [f"vars.t={{text: {json.dumps(p, ensure_ascii=False)}}}" for p in parts[3:6] if p.isprintable()]
    given = [word for each in sets for word in ("--set", each)] + ["--mesh", "data=3,tensor=2", "--replicas", "full"]
    text = jobs(engine, spec, out, *given, tmp_path=tmp_path)
    write_program(tmp_path / "bin/shardinit", SAYS_WORDS)
    write_program(tmp_path / "bin/rclone",
                  'echo rclone "$1" >> "$SAID.rclone"\nprintf "%s\\0" "$@" >> "$SAID.words"\n[ "$1" = lsf ]\n')
    name, starts = STARTS_ONE.get(engine.split()[0], STARTS_ONE["slurm"])
    write_program(tmp_path / "bin" / name, starts)
    env = {"SAID": str(tmp_path / "said")}
    if engine == "slurm --array":
        env |= {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7"}
        text = text.replace("case ${1-} in", "set -- part\ncase ${1-} in")
    result = run_script(text, tmp_path, **env)
    expected = ["gen", str(spec), *([] if engine == "object-store" else [f"--output={out}"]),
                *[f"--set={each}" for each in sets], "--mesh=data=3,tensor=2", "--replicas=full"]
    said = words_said(tmp_path)
    if engine == "object-store":
        assert said[0][:len(expected)] == expected and said[0][-2:] == ["--ranks", "0"], (said, result)
        assert (tmp_path / "said.words").read_text().split("\0")[5].rstrip("/") == out.rstrip("/")
    else:
        assert said[0] == [*expected, "--part", "0/1"], (said, result.stderr)
        if engine != "slurm --array":
            assert said[1:] == [["finalize", str(out)]]
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.parametrize("engine", ENGINES)
def test_shellcheck_accepts_job_scripts(tmp_path, engine):
    """shellcheck accepts scripts that contain the most awkward arguments."""
    if not shutil.which("shellcheck"):
        pytest.skip("not tested: shellcheck")
    (tmp_path / "it's $x.yaml").write_text(SPEC)
    for variant in [engine, *(["slurm --array"] if engine == "slurm" else [])]:
        out = "store:it's $x" if engine == "object-store" else tmp_path / "out $(x)"
        text = jobs(variant, tmp_path / "it's $x.yaml", out, "--set", "seed=4", tmp_path=tmp_path)
        if engine in ("kubernetes", "argo"):
            return
        script = text if engine != "skypilot" else "#!/bin/bash\n" + yaml.safe_load(text)["run"]
        found = subprocess.run(["shellcheck", "--severity=style", "--exclude=SC2016", "-"], input=script, text=True,
                               stdout=subprocess.PIPE)
        assert found.returncode == 0, found.stdout


def test_job_scripts_resolve_relative_paths_in_any_folder(tmp_path):
    """The script has absolute paths of the spec and the folder. If other arguments may name files, the script changes
    to the folder in which `jobs` ran."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here/spec.yaml").write_text(SPEC)
    (tmp_path / "here/shard.yaml").write_text("[{a: [data, null]}, {b: null}]\n")
    write_program(tmp_path / "bin/srun", STARTS_ONE["slurm"][1])
    for words in ([], ["--sharding", "shard.yaml"]):
        text = jobs("slurm", "spec.yaml", "out", *words, tmp_path=tmp_path, cwd=tmp_path / "here")
        assert ("\ncd -- " in text) == bool(words)
        result = run_script(text, tmp_path)
        assert result.returncode == 0, result.stderr
        run_ok("gen", "spec.yaml", "-o", "whole", *words, cwd=tmp_path / "here")
        assert tree_of(tmp_path / "here/out") == tree_of(tmp_path / "here/whole")
        shutil.rmtree(tmp_path / "here/out")
        shutil.rmtree(tmp_path / "here/whole")
    for path, is_relative in (("whole", True), (tmp_path / "here/whole", False)):
        run_ok("gen", "spec.yaml", "-o", "whole", cwd=tmp_path / "here")
        (tmp_path / "here/sourced.yaml").write_text("shardinit: 1\nname: m\ndtype: f32\nsources: {base: {path: none}}\n"
                                                    "modules: {b: {shape: [7], init: {source: base}}}\n")
        words = ["--source", f"base={path}"]
        text = jobs("slurm", "sourced.yaml", "out", *words, tmp_path=tmp_path, cwd=tmp_path / "here")
        assert ("\ncd -- " in text) == is_relative


@pytest.mark.parametrize("engine", SHELL)
def test_job_scripts_keep_urls_unchanged(tmp_path, engine):
    text = jobs(engine, "llama3-tiny", "s3://bucket/it's/x", tmp_path=tmp_path)
    assert text.count("'s3://bucket/it'\\''s/x'") == 1 and "'--output=s3://bucket/it'\\''s/x'" in text


def test_jobs_prefer_the_shipped_model_to_a_file_of_its_name(tmp_path):
    """The job uses the shipped model even if its folder contains a file with the model's name."""
    write_program(tmp_path / "bin/srun", STARTS_ONE["slurm"][1])
    text = jobs("slurm", "llama3-tiny", tmp_path / "out", tmp_path=tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/llama3-tiny").write_text(SPEC)
    assert run_script(text, tmp_path).returncode == 0
    assert "5,768,448" in run_ok("gen", "llama3-tiny", "-o", tmp_path / "out").stdout


# `srun` exits with the highest status of its tasks; the status decides whether the job is queued again.
@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 5, 70, 127, 137, 143])
@pytest.mark.parametrize("restarts", [0, 2, 3])
def test_slurm_requeues_after_transient_failures(tmp_path, status, restarts):
    write_program(tmp_path / "bin/srun", f"exit {status}\n")
    write_program(tmp_path / "bin/scontrol", f'echo "$@" >> {tmp_path / "scontrol"}\n')
    write_program(tmp_path / "bin/shardinit", "exit 0\n")
    text = jobs("slurm", "llama3-tiny", tmp_path / "out", tmp_path=tmp_path)
    result = run_script(text, tmp_path, SLURM_JOB_ID="17", SLURM_RESTART_COUNT=str(restarts))
    assert result.returncode == status
    again = status in (3, 137, 143) and restarts < 3
    assert (tmp_path / "scontrol").exists() == again
    assert not again or (tmp_path / "scontrol").read_text() == "requeue 17\n"


def test_slurm_requests_whole_nodes(tmp_path):
    text = jobs("slurm", "llama3.1-405b", tmp_path / "out", "--nodes", 16, tmp_path=tmp_path)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.M))
    assert options == {"job-name": "shardinit-llama3-1-405b", "nodes": "16", "ntasks-per-node": "1", "exclusive": "",
                       "mem": "0", "requeue": "", "open-mode": "append", "signal": "B:USR1@60"}
    assert "512 ranks, 811.7 GB, in 16 parts" in text.splitlines()[1]


def expanded(text, env):
    """Expands variables as Kubernetes does in `command` and `args`."""
    return re.sub(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_]*)\))", lambda m: "$" if m[1] == "$" else env.get(m[2], m[0]), text)


def run_container(container, volumes, tmp_path, env, image_files):
    """Runs a container's command on this machine. The folder `image_files` replaces /etc/shardinit."""
    words = [expanded(word, env) for word in container["command"] + container.get("args", [])]
    words = [word.replace("/etc/shardinit/", f"{image_files}/") if word.startswith("/etc/shardinit/") else word
             for word in words]
    return subprocess.run(words, cwd=container.get("workingDir", "/"), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE,
                          env={**CLEAN, "PATH": f"{BINARY.parent}:{os.environ['PATH']}", **env}, timeout=60)


def documents_of(text):
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        for version in ("1.29", "1.31", "1.33", "1.37"):
            kubernetes_validate.validate(document, version, strict=True)
    return documents


@pytest.mark.parametrize("seed", range(4))
def test_kubernetes_jobs_make_the_folder(tmp_path, seed):
    draw = random.Random(seed)
    volume = tmp_path / draw.choice([p for p in AWKWARD if p not in ("-n", "~")]).strip()
    volume.mkdir()
    name = draw.choice(AWKWARD).replace("/", "").strip()
    spec = tmp_path / f"{name}.yaml"
    spec.write_text(SPEC + f"# {name}\n".replace("\n#", "") if name.isprintable() else SPEC)
    text = run_ok("jobs", "kubernetes", spec, "-o", name, "--nodes", 4, "--image", "registry/it's:1", "--volume",
                  "claim", "--mount", volume, "--set", "seed=5").stdout
    config, job, finalize = documents_of(text)
    assert config["data"] == {"spec.yaml": spec.read_text()}
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry/it's:1" and container["workingDir"] == str(volume)
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {str(volume), "/etc/shardinit"}
    files = tmp_path / "files"
    files.mkdir()
    for file, content in config["data"].items():
        (files / file).write_text(content)
    for index in (2, 0, 3, 1):
        result = run_container(container, {}, tmp_path, {"JOB_COMPLETION_INDEX": str(index)}, files)
        assert result.returncode == 0, result.stderr
    last = finalize["spec"]["template"]["spec"]["containers"][0]
    (volume / name / "manifest.json").unlink()
    result = run_container(last, {}, tmp_path, {}, files)
    assert result.returncode == 0, result.stderr
    run_ok("gen", spec, "--set", "seed=5", "-o", tmp_path / "whole")
    assert tree_of(volume / name) == tree_of(tmp_path / "whole")


def test_kubernetes_jobs_have_retry_and_failure_policies(tmp_path):
    text = jobs("kubernetes", "llama3.1-405b", tmp_path / "out", "--nodes", 16, tmp_path=tmp_path)
    job, finalize = documents_of(text)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 16, 16)
    assert spec["backoffLimitPerIndex"] > 0 and "backoffLimit" not in spec
    assert 0 < spec["maxFailedIndexes"] <= spec["completions"]
    assert spec["ttlSecondsAfterFinished"] > 0 and spec["podReplacementPolicy"] == "Failed"
    ignore, fail = spec["podFailurePolicy"]["rules"]
    # The first matching rule applies: an evicted pod is killed by a signal.
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert fail == {"action": "FailIndex",
                    "onExitCodes": {"containerName": "gen", "operator": "In", "values": [1, 2, 4, 5, 70]}}
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy requires it.
    assert pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert pod["containers"][0]["name"] == "gen"
    assert pod["containers"][0]["args"] == ["gen", "<shardinit>/llama3.1-405b.yaml", f"--output={tmp_path / 'out'}",
                                            "--part=$(JOB_COMPLETION_INDEX)/16"]
    assert "completionMode" not in finalize["spec"] and finalize["metadata"]["name"] == job["metadata"]["name"] + "-finalize"
    assert finalize["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"] == "finalize"
    # Limits of Kubernetes: a pod's name is a label, and maxFailedIndexes cannot exceed the number of indexes.
    for nodes in (1, 9, 100_000):
        job, _ = documents_of(jobs("kubernetes", "llama3-tiny", tmp_path / "out", "--nodes", nodes, "--name", "x" * 40,
                                   tmp_path=tmp_path))
        assert job["spec"]["maxFailedIndexes"] <= min(nodes,
                                                      100_000) and len(job["metadata"]["name"]) + len(f"-{nodes}-finalize") <= 63


def test_long_model_names_make_valid_job_names(tmp_path):
    """The name is cut after forty characters, and a separator at the cut is removed."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("Jobs_of.a-Model", "a" * 29 + ".b"))
    job = documents_of(jobs("kubernetes", tmp_path / "spec.yaml", tmp_path / "out", tmp_path=tmp_path))[-2]
    assert job["metadata"]["name"] == "shardinit-" + "a" * 29


@pytest.mark.parametrize("model, gibibytes",
                         [("llama3-tiny", 1), ("llama3.1-8b", 17), ("llama3.1-70b", 145), ("llama3.1-405b", 832)])
def test_volume_claim_is_a_tenth_larger_than_the_files(model, gibibytes, tmp_path):
    text = run_ok("jobs", "kubernetes", model, "-o", "out", "--image", "i", "--storage-class", "nfs",
                  cwd=tmp_path).stdout
    claim = documents_of(text)[0]
    assert claim["spec"]["resources"]["requests"] == {"storage": f"{gibibytes}Gi"}
    assert gibibytes == run_json("plan", model)["file_bytes"] * 11 // 10 // 2**30 + 1


def test_storage_class_adds_a_volume_claim(tmp_path):
    text = run_ok("jobs", "kubernetes", "llama3.1-405b", "-o", "out", "--image", "i", "--storage-class", "nfs",
                  cwd=tmp_path).stdout
    claim, job, finalize = documents_of(text)
    assert claim["kind"] == "PersistentVolumeClaim"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"] and claim["spec"]["storageClassName"] == "nfs"
    assert 811.7e9 * 1.05 < int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * 2**30 < 811.7e9 * 1.2
    for each in (job, finalize):
        pod = each["spec"]["template"]["spec"]
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
        assert pod["containers"][0]["volumeMounts"][0] == {"name": "shared", "mountPath": "/work"}
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][2] == "--output=/work/out"


def test_kubernetes_finalize_waits_for_missing_ranks(tmp_path):
    """`finalize` waits while the plan or ranks are missing, and fails if something is wrong."""
    _, finalize = documents_of(jobs("kubernetes", "llama3-tiny", tmp_path / "out", tmp_path=tmp_path))
    container = finalize["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][:2] == ["sh", "-c"] and container["command"][2].count("sleep 30") == 2
    container["command"][2] = container["command"][2].replace("sleep 30", "sleep 0.1")
    words = container["command"]
    run = subprocess.Popen(words, env={**CLEAN, "PATH": f"{BINARY.parent}:{os.environ['PATH']}"},
                           stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for part in range(4):
        assert run.poll() is None
        run_ok("gen", "llama3-tiny", "-o", tmp_path / "out", "--part", f"{part}/4")
    assert run.wait(60) == 0
    # A complete checkpoint of another plan does not count as success.
    shutil.rmtree(tmp_path / "out")
    run_ok("gen", "llama3-tiny", "--set", "seed=9", "-o", tmp_path / "out")
    ended = subprocess.run(words, env={**CLEAN, "PATH": f"{BINARY.parent}:{os.environ['PATH']}"},
                           stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 4 and "holds another plan" in ended.stderr


def test_argo_workflow_makes_the_folder(tmp_path):
    volume = tmp_path / "$x it's"
    volume.mkdir()
    (tmp_path / "spec.yaml").write_text(SPEC)
    text = run_ok("jobs", "argo", tmp_path / "spec.yaml", "-o", "out", "--nodes", 3, "--image", "i", "--volume",
                  "claim", "--mount", volume).stdout
    workflow = yaml.safe_load(text)
    templates = {template["name"]: template for template in workflow["spec"]["templates"]}
    (gen,), (finalize,) = templates[workflow["spec"]["entrypoint"]]["steps"]
    assert gen["withSequence"] == {"count": "3"} and finalize["template"] == "finalize"
    assert gen["arguments"]["parameters"] == [{"name": "part", "value": "{{item}}"}]
    template = templates[gen["template"]]
    artifact = template["inputs"]["artifacts"][0]
    assert artifact["raw"]["data"] == SPEC and artifact["path"] == "/etc/shardinit/spec.yaml"
    retry = template["retryStrategy"]
    assert retry["retryPolicy"] == "Always" and "[1, 2, 4, 5, 70]" in retry["expression"] and templates["finalize"]["retryStrategy"] == retry
    (tmp_path / "files").mkdir()
    (tmp_path / "files/spec.yaml").write_text(artifact["raw"]["data"])
    for item in range(3):
        container = json.loads(json.dumps(template["container"]).replace("{{inputs.parameters.part}}", str(item)))
        assert run_container(container, {}, tmp_path, {}, tmp_path / "files").returncode == 0
    assert run_container(templates["finalize"]["container"], {}, tmp_path, {}, tmp_path).returncode == 0
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "whole")
    assert tree_of(volume / "out") == tree_of(tmp_path / "whole")
    result = run_tool("jobs", "argo", "llama3-tiny", "-o", "{{item}}", "--image", "i", "--volume", "claim")
    assert result.returncode == 2 and "Argo would put something else" in result.stderr


def test_skypilot_task_makes_the_folder(tmp_path):
    volume = tmp_path / "a\n\n  b $x it's"
    volume.mkdir()
    spec = tmp_path / "$x.yaml"
    spec.write_text(SPEC)
    task = yaml.safe_load(run_ok("jobs", "skypilot", spec, "-o", "out", "--nodes", 3, "--image", "r/i:1", "--volume",
                                 "v", "--mount", volume).stdout)
    assert task["num_nodes"] == 3 and task["resources"]["image_id"] == "docker:r/i:1"
    assert task["volumes"] == {str(volume): "v"} and task["file_mounts"] == {"/etc/shardinit/spec.yaml": str(spec)}
    text = task["run"].replace("/etc/shardinit/spec.yaml", '"$THE_SPEC"')
    for rank in (1, 2, 0):
        result = run_script(text, tmp_path, SKYPILOT_NODE_RANK=str(rank), SKYPILOT_NUM_NODES="3", THE_SPEC=str(spec))
        assert result.returncode == 0, result.stderr
    run_ok("gen", spec, "-o", tmp_path / "whole")
    assert tree_of(volume / "out") == tree_of(tmp_path / "whole")


def test_aws_batch_jobs_make_the_folder(tmp_path):
    """`aws` gets JSON of the right form, and each job's command makes its part."""
    volume = tmp_path / "END_OF_JSON it's $x"
    volume.mkdir()
    (volume / "spec.yaml").write_text(SPEC)
    text = run_ok("jobs", "batch", volume / "spec.yaml", "-o", volume / 'o"ut', "--nodes", 3, "--image", "r/i:1",
                  "--volume", "fs-0123abcd", "--queue", "it's $x", "--mount", volume).stdout
    write_program(tmp_path / "bin/aws", SAYS_WORDS + 'echo "id-$2"\n')
    result = run_script(text, tmp_path, SAID=str(tmp_path / "said"))
    assert result.returncode == 0, result.stderr
    register, array, finalize = words_said(tmp_path)

    def option(words, name):
        return words[words.index(name) + 1]
    definition = json.loads(option(register, "--cli-input-json"))
    assert option(array, "--array-properties") == "size=3" and option(array, "--job-queue") == "it's $x"
    assert option(array, "--job-definition") == option(finalize, "--job-definition") == "id-register-job-definition"
    assert option(finalize, "--depends-on") == "jobId=id-submit-job"
    container = definition["containerProperties"]
    assert container["volumes"][0]["efsVolumeConfiguration"]["fileSystemId"] == "fs-0123abcd"
    assert container["mountPoints"][0]["containerPath"] == str(volume)

    def is_tried_again(status):
        for rule in definition["retryStrategy"]["evaluateOnExit"]:
            pattern = rule.get("onExitCode", "*" if rule.get("onReason") == "*" else None)
            if pattern and re.fullmatch(pattern.replace("*", ".*"), str(status)):
                return rule["action"] == "RETRY"
        raise AssertionError("by default it is tried again")
    assert {s for s in (1, 2, 3, 4, 5, 70, 126, 127, 130, 137, 139, 143) if is_tried_again(s)} == {3, 130, 137, 139,
                                                                                                   143}
    assert len(definition["retryStrategy"]["evaluateOnExit"]) <= 5 and definition["retryStrategy"]["attempts"] <= 10
    env = {**CLEAN, "PATH": f"{BINARY.parent}:{os.environ['PATH']}"}
    for index in range(3):
        subprocess.run(container["command"], env={**env, "AWS_BATCH_JOB_ARRAY_INDEX": str(index)}, check=True,
                       stderr=subprocess.DEVNULL)
    subprocess.run(json.loads(option(finalize, "--container-overrides"))["command"], env=env, check=True)
    run_ok("gen", volume / "spec.yaml", "-o", tmp_path / "whole")
    assert tree_of(volume / 'o"ut') == tree_of(tmp_path / "whole")
    for nodes in ("1", "10001"):
        result = run_tool("jobs", "batch", "llama3.1-405b", "-o", "out", "--image", "i", "--volume", "fs-1", "--queue",
                          "q", "--nodes", nodes)
        assert result.returncode == 2 and "2 to 10,000" in result.stderr


def test_jobs_reject_files_outside_the_volume(tmp_path):
    """Every file must be on the volume, except a spec that refers to no other files."""
    volume, home = tmp_path / "volume", tmp_path / "home"
    volume.mkdir()
    home.mkdir()
    (home / "spec.yaml").write_text(SPEC)
    (home / "shard.yaml").write_text("[{a: [data, null]}, {b: null}]\n")
    (home / "includes.yaml").write_text("include: [spec.yaml]\n")
    (home / "absolute.yaml").write_text(f"include: ['{home}/spec.yaml']\n")
    (volume / "includes.yaml").write_text(f"include: ['{home}/spec.yaml']\n")
    run_ok("gen", home / "spec.yaml", "-o", home / "base")
    for spec, path in (("source.yaml", home), ("relative.yaml", "base")):
        (home / spec).write_text(f"""
shardinit: 1
name: source
dtype: f32
sources: {{base: {{path: '{path}/base'}}}}
modules: {{a: {{shape: [66, 32], init: {{source: base}}}}}}
""" if path == home else """
shardinit: 1
name: source
dtype: f32
sources: {base: {path: base}}
modules: {a: {shape: [66, 32], init: {source: base}}}
""")

    def refusal(spec, *words, out="out", mount=volume, **how):
        result = run_tool("jobs", "kubernetes", spec, "-o", out, "--image", "i", "--volume", "v", "--mount", mount,
                          *words, **how)
        assert result.returncode == 2 and not result.stdout, (result.stdout, result.stderr)
        return result.stderr.replace("\n", " ")
    assert f"do not see `{home}/shard.yaml`" in refusal(home / "spec.yaml", "--sharding", home / "shard.yaml")
    assert "do not see" in refusal(home / "spec.yaml", "--sharding", "shard.yaml", cwd=home)
    assert "names other files by relative paths" in refusal(home / "includes.yaml")
    assert f"do not see `{home}/spec.yaml`" in refusal(home / "absolute.yaml")
    assert f"do not see `{home}/spec.yaml`" in refusal(volume / "includes.yaml")
    assert f"do not see `{home}/base`" in refusal(home / "source.yaml")
    assert "names other files by relative paths" in refusal(home / "relative.yaml")
    assert f"do not see `{home}/out`" in refusal("llama3-tiny", out=home / "out")
    assert "do not see" in refusal("llama3-tiny", out="../out")
    assert "not an absolute path" in refusal("llama3-tiny", mount="work")
    (home / "large.yaml").write_text(SPEC + "# x\n" * 200_000)
    assert "too many to include" in refusal(home / "large.yaml")
    result = run_tool("jobs", "batch", home / "spec.yaml", "-o", "out", "--image", "i", "--volume", "v", "--queue", "q",
                      "--mount", volume)
    assert result.returncode == 2 and f"do not see `{home}/spec.yaml`" in result.stderr
    # Files on the volume are found from the folder in which the command ran.
    (volume / "sub").mkdir()
    for name in ("spec.yaml", "shard.yaml"):
        shutil.copy(home / name, volume / "sub" / name)
    text = run_ok("jobs", "kubernetes", "spec.yaml", "-o", "out", "--image", "i", "--volume", "v", "--mount", volume,
                  "--sharding", "shard.yaml", cwd=volume / "sub").stdout
    container = documents_of(text)[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["workingDir"] == str(volume / "sub")
    assert container["args"][:4] == ["gen", str(volume / "sub/spec.yaml"), f"--output={volume / 'sub/out'}",
                                     "--sharding=shard.yaml"]


@pytest.mark.parametrize("words, message", [
    (["slurm", "llama3-tiny"], "--output is required"),
    (["slum", "llama3-tiny", "-o", "out"], "did you mean `slurm`?"),
    (["slurm", "-", "-o", "out"], "cannot read the standard input"),
    (["slurm", "/dev/null", "-o", "out"], "/dev/null"),
    (["slurm", "none.yaml", "-o", "out"], "none.yaml"),
    (["slurm", "llama3-tiny", "-o", "out", "--set", "vars.layers=x y"], "vars.layers"),
    (["slurm", "llama3-tiny", "-o", "out", "--nodes", "0"], "whole number from 1"),
    (["slurm", "llama3-tiny", "-o", "out", "--image", "x"], "`--image` does not apply to `slurm`"),
    (["mpi", "llama3-tiny", "-o", "out", "--array"], "`--array` does not apply to `mpi`"),
    (["slurm", "llama3-tiny", "-o", "out.safetensors"], "looks like a file name"),
    (["slurm", "llama3-tiny", "-o", "out", "--array", "--nodes", "1002"], "an array of 1,001 tasks"),
    (["slurm", "llama3-tiny", "-o", "out", "--name", "a b"], "is not a valid name of a job"),
    (["kubernetes", "llama3-tiny", "-o", "out"], "`kubernetes` needs `--image`"),
    (["kubernetes", "llama3-tiny", "-o", "out", "--image", "x"], "needs a volume"),
    (["kubernetes", "llama3-tiny", "-o", "out", "--image", "x", "--volume", "v", "--storage-class", "c"],
     "exclude each other"),
    (["kubernetes", "llama3-tiny", "-o", "out", "--image", "x", "--volume", "v", "--nodes", "100001"], "100,000 pods"),
    (["batch", "llama3-tiny", "-o", "out", "--image", "x", "--volume", "fs-1"], "`batch` needs `--queue`"),
    (["object-store", "llama3-tiny", "-o", "bucket/x"], "is not a remote of rclone"),
    (["object-store", "llama3-tiny", "-o", "s3://bucket/x"], "cannot write to a URL"),
    (["slurm", "llama3-tiny", "-o", "gs://bucket/x"], "gs://bucket/x"),
    (["object-store", "llama3-tiny", "-o", "s:bucket/x", "--nodes", "2"], "`--nodes` does not apply to `object-store`"),
])
def test_jobs_reject_wrong_arguments(tmp_path, words, message):
    result = run_tool("jobs", *words, cwd=tmp_path)
    assert result.returncode == 2 and not result.stdout and message in result.stderr, result.stderr


def test_jobs_reject_a_spec_from_standard_input(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    for name in ("/dev/stdin", "/proc/self/fd/0"):
        with open(tmp_path / "spec.yaml") as spec:
            result = run_tool("jobs", "slurm", name, "-o", "out", stdin=spec)
        assert result.returncode == 2 and "not a file that a job can read later" in result.stderr


def test_shell_jobs_keep_names_that_are_not_utf8(tmp_path):
    """Shell scripts keep the bytes; YAML and JSON cannot represent them."""
    out = os.fsdecode(b"out\xff")
    with open(tmp_path / "script", "wb") as script:
        run_ok("jobs", "slurm", "llama3-tiny", "-o", tmp_path / out, stdout=script)
    write_program(tmp_path / "bin/srun", STARTS_ONE["slurm"][1])
    subprocess.run(["sh", tmp_path / "script"],
                   env={**CLEAN, "PATH": f"{tmp_path}/bin:{BINARY.parent}:{os.environ['PATH']}"}, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert os.path.exists(os.fsencode(tmp_path / "out") + b"\xff/manifest.json")
    for engine in CONTAINERS:
        result = run_tool("jobs", engine, "llama3-tiny", "-o", out, *required_options(engine, tmp_path))
        assert result.returncode == 2 and "is not UTF-8" in result.stderr, engine


def test_jobs_report_parts_without_ranks(tmp_path):
    result = run_ok("jobs", "mpi", "llama3-tiny", "-o", "out", "--nodes", 6)
    assert "2 of 6 parts have nothing to do: there are 4 ranks" in result.stderr
    assert "nothing to do" not in run_ok("jobs", "mpi", "llama3-tiny", "-o", "out", "--nodes", 4).stderr


RCLONE = shutil.which("rclone")


@pytest.fixture
def store(tmp_path):
    """Returns a function that runs the loop on a remote of the real rclone, which is a local folder."""
    if not RCLONE:
        pytest.skip("not tested: rclone")
    env = {"RCLONE_CONFIG_STORE_TYPE": "alias", "RCLONE_CONFIG_STORE_REMOTE": str(tmp_path / "store"),
           "RCLONE_CONFIG": "/dev/null", "TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "store").mkdir()
    (tmp_path / "temporary").mkdir()

    def run(*words, **more):
        return run_script(run_ok("jobs", "object-store", *words).stdout, tmp_path, **env, **more)
    return run


def test_object_store_loop_uploads_and_resumes(tmp_path, store):
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "whole")
    target = tmp_path / "store/it's $x/out"
    result = store(tmp_path / "spec.yaml", "-o", "store:it's $x/out/")
    assert result.returncode == 0 and result.stdout.endswith(": complete\n"), result.stderr
    assert tree_of(target) == tree_of(tmp_path / "whole")
    assert not list((tmp_path / "temporary").iterdir())
    # The next run keeps complete files and makes files again that are damaged or have no receipt.
    before = {f: f.stat().st_mtime_ns for f in target.rglob("*") if f.is_file()}
    assert store(tmp_path / "spec.yaml", "-o", "store:it's $x/out").returncode == 0
    assert before == {f: f.stat().st_mtime_ns for f in before}
    for name in ("manifest.json", "index.h5", "ranks/rank-00001.json", "ranks/rank-00004.h5"):
        (target / name).unlink()
    os.truncate(target / "ranks/rank-00002.h5", 100)
    assert store(tmp_path / "spec.yaml", "-o", "store:it's $x/out").returncode == 0
    assert tree_of(target) == tree_of(tmp_path / "whole")
    assert (target / "ranks/rank-00000.h5").stat().st_mtime_ns == before[target / "ranks/rank-00000.h5"]
    # A manifest proves neither that all files exist nor which plan they belong to.
    (target / "ranks/rank-00001.h5").unlink()
    assert store(tmp_path / "spec.yaml", "-o", "store:it's $x/out").returncode == 0
    assert tree_of(target) == tree_of(tmp_path / "whole")
    (target / "plan.json").rename(tmp_path / "plan.json")
    result = store(tmp_path / "spec.yaml", "-o", "store:it's $x/out", "--set", "seed=4")
    assert result.returncode == 4 and "without the plan.json" in result.stderr
    (tmp_path / "plan.json").rename(target / "plan.json")
    # Another plan is rejected and changes nothing.
    result = store(tmp_path / "spec.yaml", "-o", "store:it's $x/out", "--set", "seed=4")
    assert result.returncode == 4 and "another plan" in result.stderr
    assert tree_of(target) == tree_of(tmp_path / "whole") and not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("at", range(1, 12))
def test_object_store_loop_resumes_after_sigkill(tmp_path, store, at):
    """Wherever rclone or the loop is killed, the next run makes the rest. Without a manifest the folder is not a
    checkpoint."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    run_ok("gen", tmp_path / "spec.yaml", "-o", tmp_path / "whole")
    write_program(tmp_path / "bin/rclone", f"""
count=$(cat {tmp_path}/count 2> /dev/null || echo 0)
echo $((count + 1)) > {tmp_path}/count
[ "$count" -lt {at} ] || [ -e {tmp_path}/killed ] || {{ touch {tmp_path}/killed; kill -9 $PPID; exit 1; }}
exec {RCLONE} "$@"
""")
    first = store(tmp_path / "spec.yaml", "-o", "store:out")
    assert first.returncode == -9 and not (tmp_path / "store/out/manifest.json").exists()
    assert store(tmp_path / "spec.yaml", "-o", "store:out").returncode == 0
    assert tree_of(tmp_path / "store/out") == tree_of(tmp_path / "whole")


def test_each_engine_has_its_templates():
    """An engine prints each file of configs/jobs/, and each engine has a file."""
    names = {p.name.split(".")[0] for p in (pathlib.Path(__file__).resolve().parents[2] / "configs/jobs").iterdir()}
    assert names == {*ENGINES, "slurm-array", "kubernetes-spec", "kubernetes-volume", "skypilot-run"}
    help_text = run_ok("jobs", "--help").stdout
    assert re.search(r"What runs the jobs: (\S+)", help_text)[1].split("|") == ENGINES


def test_job_files_keep_any_folder_name(tmp_path):
    """Folder names with any characters survive YAML, and JSON within a shell script."""
    draw = random.Random(7)
    ranges = [(2, 0x20), (0x20, 0x7f), (0x7f, 0xa1), (0x300, 0x3a0), (0x2000, 0x2070), (0xfe00, 0x10000),
              (0x10000, 0x110000)]
    write_program(tmp_path / "bin/aws", SAYS_WORDS)
    for _ in range(12):
        name = "".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(30)).replace("/", "_").strip(".")
        job = next(yaml.safe_load_all(jobs("kubernetes", "llama3-tiny", tmp_path / name, tmp_path=tmp_path)))
        assert expanded(job["spec"]["template"]["spec"]["containers"][0]["args"][2],
                        {}) == f"--output={tmp_path / name}"
        run = yaml.safe_load(jobs("skypilot", "llama3-tiny", tmp_path / name, tmp_path=tmp_path))["run"]
        assert f"--output={tmp_path / name}" in run.replace("'\\''", "'")
        (tmp_path / "said").unlink(missing_ok=True)
        run_script(jobs("batch", "llama3-tiny", tmp_path / name, tmp_path=tmp_path), tmp_path,
                   SAID=str(tmp_path / "said"))
        register = words_said(tmp_path)[0]
        definition = json.loads(register[register.index("--cli-input-json") + 1])
        assert f"--output={tmp_path / name}" in definition["containerProperties"]["command"]


def test_kubernetes_job_ends_early_if_every_part_fails(tmp_path):
    for nodes in (1, 9, 10, 11, 16, 100_000):
        job, _ = documents_of(jobs("kubernetes", "llama3-tiny", tmp_path / "out", "--nodes", nodes, tmp_path=tmp_path))
        assert job["spec"]["maxFailedIndexes"] == min(nodes, 10)


def test_folder_next_to_the_volume_is_not_on_it(tmp_path):
    (tmp_path / "volume").mkdir(), (tmp_path / "volumes").mkdir()
    words = ["jobs", "kubernetes", "llama3-tiny", "--image", "i", "--volume", "v", "--mount", tmp_path / "volume", "-o"]
    result = run_tool(*words, tmp_path / "volumes/out")
    assert result.returncode == 2 and f"do not see `{tmp_path}/volumes/out`" in result.stderr, result
    assert f"{tmp_path}/volume/out" in run_ok(*words, tmp_path / "volume/out").stdout


def test_job_names_are_valid(tmp_path):
    """`jobs` accepts the names that engines accept, and derives valid names from the model's name."""
    def name_of(*words):
        return re.search(r"^#SBATCH --job-name=(.*)$",
                         run_ok("jobs", "slurm", *words, "-o", "out", cwd=tmp_path).stdout, re.M)[1]
    for name in ("a", "z", "0", "9", "a-z0-9", "x" * 40):
        assert name_of("llama3-tiny", f"--name={name}") == name
    for name in ("x" * 41, "-a", "a-", "-", "A", "aZ", "a_b", "a.b", "a/b", "a:b", "a`b", "a{b", "ü"):
        result = run_tool("jobs", "slurm", "llama3-tiny", "-o", "out", f"--name={name}")
        assert result.returncode == 2 and "is not a valid name of a job" in result.stderr, (name, result)
        assert "use up to 40 lower-case letters, digits and inner `-`" in result.stderr
    for model, name in (("a-Z_zA.09", "shardinit-a-z-za-09"), ("A", "shardinit-a"), ("x--y--", "shardinit-x-y"),
                        ("0_", "shardinit-0"),
                        ("b" * 30, "shardinit-" + "b" * 30), ("b" * 31, "shardinit-" + "b" * 30),
                        ("b" * 28 + "--c", "shardinit-" + "b" * 28 + "-c")):
        (tmp_path / "spec.yaml").write_text(SPEC.replace("Jobs_of.a-Model", f"'{model}'"))
        assert name_of("spec.yaml") == name, model


def test_env_options_accept_only_valid_variable_names(tmp_path):
    words = ["jobs", "skypilot", "llama3-tiny", "-o", "s3://bucket/x", "--image", "i"]
    good = {"A": "1", "z_9": "", "_a": "x=y", "AZaz09_": "2", "AWS_SECRET": "3", "SKYPILOT": "4"}
    given = [word for name, value in good.items() for word in ("--env", f"{name}={value}")]
    assert yaml.safe_load(run_ok(*words, *given).stdout)["envs"] == good
    for wrong in ("A", "=b", "0A=b", "5=b", "9A=b", "A-B=c", "A.B=c", "A@=c", "A[=c", "A`=c", "A{=c", "A/=c", "A:=c",
                  "ü=c", " A=b"):
        result = run_tool(*words, "--env", wrong)
        assert result.returncode == 2 and "`--env` must be NAME=VALUE, but is " in result.stderr, (wrong, result)
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        result = run_tool(*words, "--env", f"{name}=x")
        assert result.returncode == 2 and f"`--env {name}=…` would print a secret" in result.stderr, result
    result = run_tool(*words, "--env", "SKYPILOT_X=1")
    assert result.returncode == 2 and "`--env SKYPILOT_X=…`: `skypilot` sets this variable itself" in result.stderr, result
    result = run_tool(*words, "--env", "B=1", "--env", "B=1")
    assert result.returncode == 2 and "`--env B=…` is given twice" in result.stderr, result


@pytest.mark.parametrize("words, least, most, limit", [
    (["slurm"], 1, 1_000_000, "the number is out of range"),
    (["slurm", "--array"], 1, 1001, "Slurm's default MaxArraySize allows an array of 1,001 tasks"),
    (["kubernetes", "--image", "i", "--volume", "v"], 1, 100_000, "an Indexed Job has at most 100,000 pods at a time"),
    (["mpi"], 1, 1_000_000, "the number is out of range"),
    (["batch", "--image", "i", "--volume", "v", "--queue", "q"], 2, 10_000,
     "an array of AWS Batch has 2 to 10,000 jobs"),
    (["argo", "--image", "i", "--volume", "v"], 1, 1_000_000, "the number is out of range"),
    (["skypilot", "--image", "i", "--volume", "v"], 1, 1_000_000, "the number is out of range")])
def test_each_engine_limits_the_number_of_parts(words, least, most, limit, tmp_path):
    given = ["jobs", words[0], "llama3-tiny", "-o", "out", *words[1:]]
    assert f", in {least} part{'s' * (least > 1)}. Written by `shardinit jobs {words[0]}`" in run_ok(*given,
        cwd=tmp_path).stdout
    for nodes in (least, most):
        assert f"in {nodes:,} part" in run_ok(*given, "--nodes", nodes, cwd=tmp_path).stdout
    result = run_tool(*given, "--nodes", str(most + 1), cwd=tmp_path)
    assert result.returncode == 2 and f"`--nodes {most + 1}`: {limit}" in result.stderr, result
    assert f"use {most} at most: a part may have many ranks" in result.stderr
    if least > 1:
        result = run_tool(*given, "--nodes", str(least - 1), cwd=tmp_path)
        assert result.returncode == 2 and f"`--nodes {least - 1}`: {limit}" in result.stderr and f"use {least} at least" in result.stderr, result


def test_object_store_accepts_rclone_remotes(tmp_path):
    for remote, said in (("store:bucket/x", "store:bucket/x"), ("store:bucket/x//", "store:bucket/x"),
                         (":s3:b", ":s3:b"), ("a b:c/", "'a b:c'")):
        text = run_ok("jobs", "object-store", "llama3-tiny", "-o", remote, cwd=tmp_path).stdout
        assert re.search(rf"=({re.escape(said)}|'{re.escape(said)}')$", text, re.M), text
    for remote in ("bucket/x", "--config:x"):
        result = run_tool("jobs", "object-store", "llama3-tiny", f"--output={remote}", cwd=tmp_path)
        assert result.returncode == 2 and f"`-o {remote}` is not a remote of rclone" in result.stderr, result


# The value of each option that only some engines accept.
OF_SOME = {
    "--nodes": "2",
    "--array": None,
    "--image": "i",
    "--volume": "v",
    "--storage-class": "c",
    "--mount": "/work",
    "--queue": "q",
    "--env": "A=b",
    "--secret": "s",
    "--service-account": "a",
    "--job-role": "r",
}
# Options that each engine accepts, and those it needs for a folder and for a bucket.
OF_CONTAINERS = {"--nodes", "--image", "--volume", "--mount", "--env"}
TAKES = {
    "slurm": ({"--nodes", "--array"}, (), ()),
    "mpi": ({"--nodes"}, (), ()),
    "object-store": (set(), (), None),
    "kubernetes": (
        OF_CONTAINERS | {"--storage-class", "--secret", "--service-account"},
        ("--image", "--volume"),
        ("--image", "--secret"),
    ),
    "argo": (OF_CONTAINERS | {"--secret", "--service-account"}, ("--image", "--volume"), ("--image", "--secret")),
    "skypilot": (OF_CONTAINERS, ("--image", "--volume"), ("--image",)),
    "batch": (
        OF_CONTAINERS | {"--queue", "--job-role"},
        ("--image", "--queue", "--volume"),
        ("--image", "--queue", "--job-role"),
    ),
}


def given(flags):
    return [word for flag in flags for word in (flag, OF_SOME[flag]) if word is not None]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_accepts_only_its_own_options(engine):
    """Each engine accepts its own options, rejects all others, and reports which required option is missing."""
    takes, in_folder, in_bucket = TAKES[engine]
    # Buckets need no volume, so storage class and mount point do not apply.
    of_folder = {"kubernetes": {"--storage-class"}}.get(engine, set())
    for out, needs in (
        ("s:/work/out" if engine == "object-store" else "/work/out", in_folder),
        ("s3://bucket/x", in_bucket),
    ):
        if needs is None:
            continue
        base = ["jobs", engine, "llama3-tiny", "-o", out]
        run_ok(*base, *given(needs))
        for flag in OF_SOME:
            result = run_tool(*base, *given(dict.fromkeys([*needs, flag])))
            if flag not in takes:
                assert result.returncode == 2 and f"`{flag}` does not apply to `{engine}`\n" in result.stderr, (flag, result)
            elif out.startswith("s3:") and flag == "--mount":
                assert result.returncode == 2 and "none is given" in result.stderr, (flag, result)
            elif flag in of_folder:
                assert (
                    result.returncode == 2
                    and ("the checkpoint goes to a bucket" if out.startswith("s3:") else "exclude each other") in result.stderr
                ), (flag, result)
            else:
                assert result.returncode == 0, (flag, result)
        for flag in needs:
            result = run_tool(*base, *given(each for each in needs if each != flag))
            assert result.returncode == 2 and f"`{engine}` needs " in result.stderr, (flag, result)
            assert flag in result.stderr or (engine, flag) == ("kubernetes", "--volume"), (flag, result)


@pytest.mark.parametrize("where", ["folder", "bucket"])
@pytest.mark.parametrize("engine", [*SHELL, *CONTAINERS, "object-store"])
def test_jobs_pass_on_every_option_of_gen(tmp_path, engine, where):
    """The jobs get every option of `jobs` that `gen` has too, except the folder and the options of one process."""
    engine, *array = engine.split()
    (tmp_path / "base.yaml").write_text(SPEC + "  c: {shape: [7], init: ones}\n")
    (tmp_path / "shard.yaml").write_text("[{a: [data, tensor]}, {b: null}, {c: null}]\n")
    run_ok("gen", "base.yaml", "-o", "base", cwd=tmp_path)
    digest = run_json("digest", tmp_path / "base")["model_digest"]
    (tmp_path / "spec.yaml").write_text(
        SPEC + "  c: {shape: [7], init: {source: base}}\nlayouts: {l: {keep: ['*']}}\n"
        f"sources: {{base: {{path: none, digest: '{digest}'}}}}\n"
    )
    options = {
        "--set": ["seed=5", "name=x"],
        "--mesh": ["data=3,tensor=2"],
        "--sharding": ["shard.yaml"],
        "--source": [f"base={tmp_path}/base"],
        "--deny": ["warnings"],
        "--layout": ["l"],
        "--replicas": ["full"],
    }
    help_of = {
        command: set(re.findall(r"--[a-z][a-z-]+", run_ok(command, "--help").stdout)) for command in ("jobs", "gen")
    }
    common = set(re.findall(r"--[a-z][a-z-]+", run_ok("list", "--help").stdout))
    assert set(options) == (help_of["jobs"] & help_of["gen"]) - common - {"--output"}
    words = [word for flag, values in options.items() for value in values for word in (flag, value)]
    out = ("s:out" if engine == "object-store" else tmp_path / "out") if where == "folder" else "s3://bucket/x"
    if (engine, where) == ("object-store", "bucket"):
        return
    needs = dict.fromkeys(
        [*TAKES[engine][1 if where == "folder" else 2], *(["--volume"] if engine in CONTAINERS else [])]
    )
    mount = ["--mount", tmp_path] if engine in CONTAINERS else []
    text = run_ok("jobs", engine, "spec.yaml", "-o", out, *array, *given(needs), *mount, *words, cwd=tmp_path).stdout
    expected = [f"{flag}={value}" for flag, values in options.items() for value in values]
    places = [text.find(each) for each in expected]
    assert -1 not in places and places == sorted(places), [
        each for each, place in zip(expected, places, strict=True) if place < 0
    ]
    # Running the options without the engine works and makes the same checkpoint.
    run_ok("gen", "spec.yaml", "-o", "made", *expected, cwd=tmp_path)


@pytest.mark.parametrize("engine, mark, said", [("argo", "{{", "Argo"), ("batch", "Ref::", "AWS Batch")])
def test_jobs_reject_template_marks_in_arguments(tmp_path, engine, mark, said):
    """`jobs` rejects the engine's template marks anywhere in the user's arguments."""
    volume, odd = tmp_path / "v", tmp_path / f"w{mark}"
    for folder in (volume / f"sub{mark}", odd):
        folder.mkdir(parents=True)
    (volume / "spec.yaml").write_text(SPEC + "vars: {t: {text: x}}\n")
    (volume / f"{mark}.yaml").write_text(SPEC)
    (tmp_path / "spec.yaml").write_text(SPEC + f"# {mark}\n")
    (odd / "spec.yaml").write_text(SPEC)
    words = ["--image", "i", "--volume", "v", *(["--queue", "q"] if engine == "batch" else [])]

    def told(spec, *more, mount=volume, out="out", cwd=volume):
        return run_tool("jobs", engine, spec, "-o", out, *words, "--mount", mount, *more, cwd=cwd)

    assert told("spec.yaml").returncode == 0
    cases = {
        "set": told("spec.yaml", "--set", f"vars.t={{text: '{mark}'}}"),
        "value": told("spec.yaml", "--env", f"A={mark}"),
        "folder": told("spec.yaml", out=f"out{mark}"),
        "spec": told(f"{mark}.yaml"),
        "mount": told("llama3-tiny", mount=odd, cwd=odd, out=odd / "o"),
        "directory": told("llama3-tiny", cwd=volume / f"sub{mark}", out=volume / "o"),
    }
    if engine == "argo":
        cases["text"] = told(tmp_path / "spec.yaml")
    for name, result in cases.items():
        assert (
            result.returncode == 2 and f"{said} would put something else in the place of `{mark}`, in " in result.stderr
        ), (name, result)


def test_embedded_config_json_stays_json(tmp_path):
    """A Hugging Face config stays JSON under its own name; options given to `jobs` apply to the jobs."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 8,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "vocab_size": 16,
                "max_position_embeddings": 8,
                "rms_norm_eps": 1e-5,
                "torch_dtype": "float32",
            }
        )
    )
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "volume").mkdir()
    for path, name in (("config.json", "config.json"), ("spec.yaml", "spec.yaml")):
        words = [tmp_path / path, "-o", "out", "--image", "i", "--mount", tmp_path / "volume", "--set", "seed=17"]
        config, job, finalize = documents_of(run_ok("jobs", "kubernetes", *words, "--volume", "v").stdout)
        assert config["data"] == {name: (tmp_path / path).read_text()}
        for document in (job, finalize):
            pod = document["spec"]["template"]["spec"]
            assert f"/etc/shardinit/{name}" in [
                *pod["containers"][0]["command"],
                *pod["containers"][0].get("args", []),
            ], pod
        # A new claim does not displace the spec.
        kinds = [
            document["kind"]
            for document in documents_of(run_ok("jobs", "kubernetes", *words, "--storage-class", "c").stdout)
        ]
        assert kinds == ["PersistentVolumeClaim", "ConfigMap", "Job", "Job"]
        (artifact,) = yaml.safe_load(run_ok("jobs", "argo", *words, "--volume", "v").stdout)["spec"]["templates"][1][
            "inputs"
        ]["artifacts"]
        assert artifact["path"] == f"/etc/shardinit/{name}" and artifact["raw"]["data"] == config["data"][name]
        task = yaml.safe_load(run_ok("jobs", "skypilot", path, *words[1:], "--volume", "v", cwd=tmp_path).stdout)
        assert task["file_mounts"] == {f"/etc/shardinit/{name}": str(tmp_path / path)}


@pytest.mark.parametrize("engine", SHELL)
@pytest.mark.parametrize(
    "sets, is_file",
    [
        (["name=a.b"], True),
        (["name=ab"], False),
        (["vars.t={text: a/b}"], True),
        (["vars.t={text: ab}"], False),
        (["vars.t=0.5"], False),
        (["vars.t=-1.5e-3"], False),
        (["vars.t=1/2"], True),
        (["seed=4", "name=b.c"], True),
        (["name=b.c", "seed=4"], True),
    ],
)
def test_jobs_change_folder_for_values_that_may_be_paths(tmp_path, engine, sets, is_file):
    """Only for values that may name files do the jobs change to the folder in which `jobs` ran."""
    (tmp_path / "spec.yaml").write_text(SPEC + "vars: {t: {text: x}}\n")
    words = [word for each in sets for word in ("--set", each)]
    text = run_ok(
        "jobs", *engine.split()[:1], "spec.yaml", "-o", "out", *engine.split()[1:], *words, cwd=tmp_path
    ).stdout
    assert (f"\ncd -- {tmp_path} || exit\n" in text) == is_file


def test_jobs_request_disk_space_for_the_largest_rank(tmp_path):
    """The loop asks for disk space for the largest rank. `--array` makes an array even of one part."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("shape: [7]", "shape: [70000]"))
    plan = run_json("plan", tmp_path / "spec.yaml")
    text = run_ok("jobs", "object-store", tmp_path / "spec.yaml", "-o", "s:x").stdout
    told = re.search(r"the disk needs room for the largest rank, ([\d.]+) kB", text)[1]
    assert abs(float(told) * 1000 - plan["max_rank_bytes"]) < 60
    for nodes in ("1", "3"):
        text = run_ok("jobs", "slurm", "llama3-tiny", "-o", "x", "--array", "--nodes", nodes).stdout
        assert "#SBATCH" not in text and f"\nparts={nodes}\n" in text and '--array="$list"' in text
        assert "#SBATCH" in run_ok("jobs", "slurm", "llama3-tiny", "-o", "x", "--nodes", nodes).stdout
    for out, is_told in (("s3://bucket/x", True), ("/work/x", False)):
        text = run_ok("jobs", "skypilot", "llama3-tiny", "-o", out, "--image", "i", "--volume", "v").stdout
        assert ("\n#   sky launch --secret AWS_ACCESS_KEY_ID" in text) == is_told
