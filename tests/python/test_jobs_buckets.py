"""`jobs` for a checkpoint in a bucket: no volume, credentials in each engine's usual way, and commands that make the
objects of one run. The tests run the commands as the engine would, with only the variables in the document."""

import contextlib
import json
import os
import re
import subprocess
import time

import pytest
import yaml
from object_store import KEY, REGION, SECRET
from support import BINARY, CLEAN, run_ok, run_tool
from test_bucket import assert_is, credentials, later, services  # noqa: F401
from test_jobs import (CONTAINERS, SAYS_WORDS, SHELL, SPEC, STARTS_ONE, documents_of, expanded, run_script, words_said,
                       write_program)

PREFIX = "it's $x/$(JOB_COMPLETION_INDEX) $$/say \"x\" {a: [b"
URL = f"s3://bucket/{PREFIX}"
PARTS = 3
OF_ENGINE = {"kubernetes": ["--service-account", "writer"], "argo": ["--secret", "keys"], "skypilot": [],
             "batch": ["--job-role", "arn:aws:iam::1:role/r", "--queue", "q"]}
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
# This machine's variables without those that a cluster's container lacks.
IN_CONTAINER = {**{name: value for name, value in CLEAN.items() if not name.startswith("AWS_")},
                "PATH": f"{BINARY.parent}:{os.environ['PATH']}"}


@pytest.fixture
def spec(tmp_path):
    """Returns a spec that is not on a volume, and writes its local checkpoint `whole` next to it."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    run_ok("gen", path, "--set", "seed=5", "-o", tmp_path / "whole")
    return path


def jobs(engine, *words, store):
    """Returns the document, with variables that pass the store's URL to the jobs."""
    env = {"AWS_REGION": REGION, "AWS_ENDPOINT_URL_S3": store.url}
    told = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    return run_ok("jobs", engine, *words, "-o", URL, "--nodes", PARTS, "--image", "r/shardinit:1", *OF_ENGINE[engine],
                  *told).stdout


def run_argv(words, env, tmp_path):
    """Runs a container's command with only its own variables. A spec in the document is in `tmp_path`/files."""
    words = [re.sub("^/etc/shardinit/", f"{tmp_path}/files/", word) for word in words]
    env = {**IN_CONTAINER, "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", **env}
    return subprocess.run(words, cwd="/", env=env, capture_output=True, text=True, timeout=120)


def run_all(runs, tmp_path, store):
    for words, env in runs:
        done = run_argv(words, env, tmp_path)
        assert done.returncode == 0, (words, done.stderr)
        assert store.refused == []


def write_files(tmp_path, files):
    (tmp_path / "files").mkdir()
    for name, content in files.items():
        (tmp_path / "files" / name).write_text(content)


def assert_made(store, tmp_path):
    """Asserts that each rank was written once, that the objects equal one run's, and that nothing is left over."""
    ranks = [key for kind, key in store.log if kind == "put" and key.endswith(".h5") and "/ranks/" in key]
    assert len(ranks) == len(set(ranks)) == 6, ranks
    assert_is(store, tmp_path / "whole", PREFIX)
    done = run_argv(["shardinit", "verify", URL], store.environment, tmp_path)
    assert done.returncode == 0 and "intact: 6 ranks" in done.stdout, done.stderr


def container_variables(container):
    """Returns a container's variables as Kubernetes expands them."""
    return {variable["name"]: expanded(variable["value"], {}) for variable in container.get("env", [])}


def test_kubernetes_jobs_fill_a_bucket(tmp_path, spec, object_store, services):  # noqa: F811
    """The pods use the role of their service account, as on EKS."""
    config, job, finalize = documents_of(jobs(
        "kubernetes", spec, "--set", "seed=5", "--env", f"AWS_ENDPOINT_URL_STS={services.url}",
        "--env", "SAID=$(AWS_REGION) it's", store=object_store))
    assert [document["kind"] for document in (config, job, finalize)] == ["ConfigMap", "Job", "Job"]
    write_files(tmp_path, config["data"])
    keys = credentials(object_store, "session")
    services.answers["POST", "/"] = lambda _, body: "web-identity" in body and (
        f"<Credentials><AccessKeyId>{keys['AccessKeyId']}</AccessKeyId>"
        f"<SecretAccessKey>{keys['SecretAccessKey']}</SecretAccessKey>"
        f"<SessionToken>session</SessionToken><Expiration>{later(3600)}</Expiration></Credentials>") or None
    (tmp_path / "token").write_text("web-identity")
    role = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")}
    runs = []
    for document in (job, finalize):
        pod = document["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == "writer"
        assert pod["volumes"] == [{"name": "spec", "configMap": {"name": config["metadata"]["name"]}}]
        container, = pod["containers"]
        assert container["volumeMounts"] == [{"name": "spec", "mountPath": "/etc/shardinit"}]
        assert "workingDir" not in container and "envFrom" not in container
        env = container_variables(container)
        assert env == {"AWS_REGION": REGION, "AWS_ENDPOINT_URL_S3": object_store.url,
                       "AWS_ENDPOINT_URL_STS": services.url, "SAID": "$(AWS_REGION) it's"}
        for index in (2, 0, 1) if document is job else (None,):
            own = {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
            words = container["command"] + container.get("args", [])
            runs.append(([expanded(word, own) for word in words], {**env, **role, **own}))
    # The last part completes the checkpoint. `finalize` must complete it if no part noticed that it was the last.
    run_all(runs[:-1], tmp_path, object_store)
    for name in ("manifest.json", "index.h5"):
        object_store.remove(f"{PREFIX}/{name}")
    run_all(runs[-1:], tmp_path, object_store)
    assert_made(object_store, tmp_path)


def test_kubernetes_pods_get_keys_from_a_secret():
    words = ["jobs", "kubernetes", "llama3-tiny", "-o", URL, "--image", "i", "--secret", "it's"]
    job, finalize = documents_of(run_ok(*words).stdout)
    for document in (job, finalize):
        pod = document["spec"]["template"]["spec"]
        assert "volumes" not in pod and "serviceAccountName" not in pod
        container, = pod["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "it's"}}] and container["image"] == "i"
        assert not {"env", "volumeMounts"} & container.keys()
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[2:] == ["--output=" + URL.replace("$", "$$"), "--part=$(JOB_COMPLETION_INDEX)/1"]


def test_kubernetes_finalize_of_a_bucket_waits_for_ranks(object_store):
    """`finalize` waits while the plan or ranks are missing, and fails if something is wrong."""
    *_, finalize = documents_of(jobs("kubernetes", "llama3-tiny", store=object_store))
    container, = finalize["spec"]["template"]["spec"]["containers"]
    script = container["command"][2]
    # Checking all receipts costs one request for each.
    assert script.count("sleep 30;") == script.count("sleep 300;") == 1
    container["command"][2] = re.sub("sleep 300?;", "sleep 0.1;", script)
    words = [expanded(word, {}) for word in container["command"]]
    env = {**IN_CONTAINER, **object_store.environment, **container_variables(container)}
    run = subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        stack.callback(run.kill)
        for part in range(4):
            time.sleep(0.5)
            assert run.poll() is None
            run_ok("gen", "llama3-tiny", "-o", URL, "--part", f"{part}/4", env=object_store.environment)
        assert run.wait(60) == 0
    # A complete checkpoint of another plan does not count as success, and neither does a missing bucket.
    for key in object_store.names():
        object_store.remove(key)
    run_ok("gen", "llama3-tiny", "--set", "seed=9", "-o", URL, env=object_store.environment)
    ended = subprocess.run(words, env=env, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 4 and "holds another plan" in ended.stderr
    nowhere = [word.replace("s3://bucket/", "s3://no-bucket/") for word in words]
    ended = subprocess.run(nowhere, env=env, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 2 and "no-bucket" in ended.stderr


def test_argo_workflow_fills_a_bucket(tmp_path, spec, object_store):
    """The pods get their keys from a Secret."""
    text = jobs("argo", spec, "--set", "seed=5", "--service-account", "of-workflows", store=object_store)
    workflow = yaml.safe_load(text)["spec"]
    assert "volumes" not in workflow and workflow["serviceAccountName"] == "of-workflows"
    templates = {template["name"]: template for template in workflow["templates"]}
    artifact, = templates["gen"]["inputs"]["artifacts"]
    write_files(tmp_path, {"spec.yaml": artifact["raw"]["data"]})
    runs = []
    for name, parts in (("gen", range(PARTS)), ("finalize", [0])):
        container = templates[name]["container"]
        assert "volumeMounts" not in container and "workingDir" not in container
        # They are valid Kubernetes containers.
        documents_of(yaml.dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                                "spec": {"containers": [{"name": "c", **container}]}}))
        assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
        for part in parts:
            words = [expanded(word, {}).replace("{{inputs.parameters.part}}", str(part))
                     for word in container["command"] + container["args"]]
            runs.append((words, {**KEYS, **container_variables(container)}))
    run_all(runs, tmp_path, object_store)
    assert_made(object_store, tmp_path)


def test_skypilot_task_fills_a_bucket(tmp_path, spec, object_store):
    """The nodes use the credentials of the machine that starts them."""
    task = yaml.safe_load(jobs("skypilot", spec, "--set", "seed=5", store=object_store))
    assert "volumes" not in task and task["file_mounts"] == {"/etc/shardinit/spec.yaml": str(spec)}
    assert task["envs"] == {"AWS_REGION": REGION, "AWS_ENDPOINT_URL_S3": object_store.url}
    assert task["num_nodes"] == PARTS and "sleep 300;" in task["run"]
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws/credentials").write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    script = task["run"].replace("/etc/shardinit/spec.yaml", str(spec))
    env = {**task["envs"], "HOME": str(home), "SKYPILOT_NUM_NODES": str(PARTS)}
    run_all([(["bash", "-c", script], {**env, "SKYPILOT_NODE_RANK": str(rank)}) for rank in (1, 2, 0)],
            tmp_path, object_store)
    assert_made(object_store, tmp_path)


def test_aws_batch_jobs_fill_a_bucket(tmp_path, spec, object_store, services):  # noqa: F811
    """The jobs get their role's credentials from the container service."""
    model = "llama3-tiny"
    run_ok("gen", model, "-o", tmp_path / "tiny")
    write_program(tmp_path / "bin/aws", SAYS_WORDS + 'echo "id-$2"\n')
    result = run_script(jobs("batch", model, store=object_store), tmp_path, SAID=str(tmp_path / "said"))
    assert result.returncode == 0, result.stderr
    register, _, finalize = words_said(tmp_path)
    container = json.loads(register[register.index("--cli-input-json") + 1])["containerProperties"]
    assert "volumes" not in container and "mountPoints" not in container
    assert container["jobRoleArn"] == "arn:aws:iam::1:role/r"
    env = {variable["name"]: variable["value"] for variable in container["environment"]}
    assert env == {"AWS_REGION": REGION, "AWS_ENDPOINT_URL_S3": object_store.url}
    given = {**credentials(object_store, "session"), "Token": "session", "Expiration": later(3600)}
    services.answers["GET", "/role"] = lambda *_: json.dumps(given)
    env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = services.url + "/role"
    last = json.loads(finalize[finalize.index("--container-overrides") + 1])["command"]
    parts = [(container["command"], {**env, "AWS_BATCH_JOB_ARRAY_INDEX": str(index)}) for index in range(PARTS)]
    run_all([*parts, (last, env)], tmp_path, object_store)
    assert_is(object_store, tmp_path / "tiny", PREFIX)
    done = run_argv(["shardinit", "verify", URL], object_store.environment, tmp_path)
    assert done.returncode == 0 and "intact: 4 ranks" in done.stdout
    # Jobs of AWS Batch cannot receive files.
    done = run_tool("jobs", "batch", spec, "-o", URL, "--image", "i", *OF_ENGINE["batch"])
    assert done.returncode == 2 and f"the containers do not see `{spec}`: they have no volume" in done.stderr


@pytest.mark.parametrize("engine", SHELL)
def test_slurm_and_mpi_jobs_inherit_credentials(engine, tmp_path, spec, object_store):
    """Jobs of Slurm and MPI inherit the variables of the submitting user."""
    name, starts = STARTS_ONE[engine.split()[0]]
    write_program(tmp_path / "bin" / name, starts)
    text = run_ok("jobs", *engine.split()[:1], spec, "-o", URL, "--set", "seed=5", *engine.split()[1:]).stdout
    if "--array" in engine:
        after = text.replace("case ${1-} in", "set -- after 1\ncase ${1-} in")
        text = text.replace("case ${1-} in", "set -- part\ncase ${1-} in")
        env = {**object_store.environment, "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7",
               "SLURM_JOB_ID": "8"}
        # Without a plan all parts are missing, so all are queued.
        write_program(tmp_path / "bin/sbatch", 'echo "$@" >> sbatch.log\necho 9\n')
        write_program(tmp_path / "bin/scontrol", "")
        result = run_script(after, tmp_path, **env)
        assert result.returncode == 0, result.stderr
        assert "--array=0-0" in (tmp_path / "elsewhere/sbatch.log").read_text()
        assert run_script(text, tmp_path, **env).returncode == 0
        for object_name in ("manifest.json", "index.h5"):
            object_store.remove(f"{PREFIX}/{object_name}")
        result = run_script(after, tmp_path, **env)
    else:
        result = run_script(text, tmp_path, **object_store.environment)
    assert result.returncode == 0 and f"{URL}: complete" in result.stdout, result.stderr
    assert_made(object_store, tmp_path)


@pytest.mark.parametrize("engine", CONTAINERS)
def test_bucket_jobs_may_read_files_on_a_volume(engine, tmp_path, object_store):
    """Files that a spec reads may be on a volume, which is mounted as for a folder."""
    volume = tmp_path / "a volume"
    (volume / "sub").mkdir(parents=True)
    (volume / "sub/spec.yaml").write_text(SPEC)
    (volume / "sub/shard.yaml").write_text("[{a: [data, null]}, {b: null}]\n")
    words = ["jobs", engine, "spec.yaml", "-o", URL, "--sharding", "shard.yaml", "--image", "i", *OF_ENGINE[engine]]
    done = run_tool(*words, cwd=volume / "sub")
    assert done.returncode == 2 and "they have no volume" in done.stderr
    text = run_ok(*words, "--volume", "claim", "--mount", volume, cwd=volume / "sub").stdout
    env = {}
    if engine == "batch":
        write_program(tmp_path / "bin/aws", SAYS_WORDS)
        run_script(text, tmp_path, SAID=str(tmp_path / "said"))
        register = words_said(tmp_path)[0]
        container = json.loads(register[register.index("--cli-input-json") + 1])["containerProperties"]
        assert container["mountPoints"] == [{"sourceVolume": "shared", "containerPath": str(volume)}]
        command = container["command"]
    elif engine == "skypilot":
        task = yaml.safe_load(text)
        assert task["volumes"] == {str(volume): "claim"} and "file_mounts" not in task
        command, env = ["bash", "-c", task["run"]], {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}
    else:
        document = yaml.safe_load(text) if engine == "argo" else documents_of(text)[0]
        pod = document["spec"] if engine == "argo" else document["spec"]["template"]["spec"]
        container = pod["templates"][1]["container"] if engine == "argo" else pod["containers"][0]
        assert pod["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "claim"}}]
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": str(volume)}]
        assert container["workingDir"] == str(volume / "sub")
        words = [expanded(word, {"JOB_COMPLETION_INDEX": "0"}).replace("{{inputs.parameters.part}}", "0")
                 for word in container["command"] + container["args"]]
        command = ["sh", "-c", 'cd "$0" && exec "$@"', container["workingDir"], *words]
    for part in range(2 if engine == "batch" else 1):
        done = run_argv(command, {**object_store.environment, **env, "AWS_BATCH_JOB_ARRAY_INDEX": str(part)}, tmp_path)
        assert done.returncode == 0, done.stderr
    run_ok("gen", "spec.yaml", "--sharding", "shard.yaml", "-o", tmp_path / "whole", cwd=volume / "sub")
    assert_is(object_store, tmp_path / "whole", PREFIX)


KUBERNETES = ["kubernetes", "llama3-tiny", "--image", "x", "-o", "s3://bucket/x"]
BATCH = ["batch", "llama3-tiny", "--image", "x", "--queue", "q", "--job-role", "r", "-o", "s3://bucket/x"]


@pytest.mark.parametrize("words, message", [
    (KUBERNETES, "`kubernetes` needs `--service-account` or `--secret` for a bucket"),
    (["argo", *KUBERNETES[1:]], "`argo` needs `--service-account` or `--secret` for a bucket"),
    (["batch", *KUBERNETES[1:], "--queue", "q"], "`batch` needs `--job-role` for a bucket"),
    ([*KUBERNETES, "--secret", "s", "--storage-class", "nfs"], "creates a volume, but the checkpoint goes"),
    ([*KUBERNETES, "--secret", "s", "--mount", "/work"], "needs a volume, but none is given"),
    ([*KUBERNETES, "--job-role", "arn"], "`--job-role` does not apply to `kubernetes`"),
    (["skypilot", *KUBERNETES[1:], "--secret", "s"], "`--secret` does not apply to `skypilot`"),
    (["slurm", "llama3-tiny", "-o", "s3://bucket/x", "--env", "A=b"], "`--env` does not apply to `slurm`"),
    ([*KUBERNETES, "--secret", "s", "--env", "AWS_REGION"], "must be NAME=VALUE, but is"),
    ([*KUBERNETES, "--secret", "s", "--env", "1A=b"], "must be NAME=VALUE, but is"),
    ([*KUBERNETES, "--secret", "s", "--env", "A=b", "--env", "A=c"], "is given twice"),
    ([*KUBERNETES, "--secret", "s", "--env", "AWS_SECRET_ACCESS_KEY=b"], "would print a secret"),
    ([*KUBERNETES, "--secret", "s", "--env", "JOB_COMPLETION_INDEX=1"], "`kubernetes` sets this variable itself"),
    ([*BATCH, "--env", "AWS_BATCH_JOB_ARRAY_INDEX=1"], "`batch` sets this variable itself"),
    (["skypilot", *KUBERNETES[1:], "--env", "SKYPILOT_NODE_RANK=1"], "`skypilot` sets this variable itself"),
    (["argo", *KUBERNETES[1:], "--secret", "s", "--env", "A={{item}}"], "Argo would put something else"),
    (["argo", *KUBERNETES[1:-1], "s3://bucket/{{item}}", "--secret", "s"], "Argo would put something else"),
    ([*BATCH[:-1], "s3://bucket/Ref::x"], "AWS Batch would put something else"),
    (["slurm", "llama3-tiny", "-o", "s3://b/x"], "a bucket has a name of 3 to 63"),
    (["kubernetes", "llama3-tiny", "--image", "x", "-o", "gs://bucket/x", "--secret", "s"], "gs://bucket/x"),
    (["object-store", "llama3-tiny", "-o", "s3://bucket/x"], "cannot write to a URL"),
])
def test_bucket_jobs_reject_wrong_arguments(tmp_path, words, message):
    result = run_tool("jobs", *words, cwd=tmp_path)
    assert result.returncode == 2 and not result.stdout and message in result.stderr, result.stderr


@pytest.mark.parametrize("engine", CONTAINERS)
def test_env_options_keep_any_value(engine, tmp_path):
    """Names and values that YAML could misread come back unchanged."""
    given = {"NO": "yes", "ON": "1", "NULL": "~", "E": "", "Q": "say \"it's\" $(NO) $$ `x` \\",
             "L": "a\nb\n\n  c: [\n", "U": "ü\x85☃"}
    words = [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
    text = run_ok("jobs", engine, "llama3-tiny", "-o", URL, "--image", "i", *OF_ENGINE[engine], *words).stdout
    if engine == "batch":
        write_program(tmp_path / "bin/aws", SAYS_WORDS)
        run_script(text, tmp_path, SAID=str(tmp_path / "said"))
        register = words_said(tmp_path)[0]
        container = json.loads(register[register.index("--cli-input-json") + 1])["containerProperties"]
        assert {each["name"]: each["value"] for each in container["environment"]} == given
    elif engine == "skypilot":
        assert yaml.safe_load(text)["envs"] == given
    elif engine == "argo":
        for template in yaml.safe_load(text)["spec"]["templates"][1:]:
            assert container_variables(template["container"]) == given
    else:
        for document in documents_of(text):
            container, = document["spec"]["template"]["spec"]["containers"]
            assert container_variables(container) == given


@pytest.mark.parametrize("engine", CONTAINERS)
def test_jobs_warn_if_the_store_url_is_not_passed_on(engine):
    """`jobs` warns if a variable with the store's URL is set here but not passed to the jobs."""
    words = ["jobs", engine, "llama3-tiny", "-o", URL, "--image", "i", *OF_ENGINE[engine]]
    names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    for here in ([], names[:1], names[1:], names):
        for there in ([], names[:1], names[1:], names):
            env = dict.fromkeys(here, "https://store")
            handed = [word for name in there for word in ("--env", f"{name}=https://other")]
            said = run_ok(*words, *handed, env=env).stderr
            lacking = [name for name in names if name in here and name not in there]
            said_of = r"shardinit: (\w+) is set here, but not in the jobs: add `--env (\w+)=…` if they need it\n"
            found = re.findall(said_of, said)
            assert found == [(name, name) for name in lacking], (here, there, said)
            assert said.count("is set here") == len(lacking)
    folder = ["jobs", engine, "llama3-tiny", "-o", "/work/out", "--image", "i", "--volume", "v", *OF_ENGINE[engine]]
    if engine == "batch":
        folder = folder[:-4] + ["--queue", "q"]
    assert "is set here" not in run_ok(*folder, env={"AWS_ENDPOINT_URL": "https://store"}).stderr
