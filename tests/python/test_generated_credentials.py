"""Compares requests with botocore's in random environments, profile files and credential services.

A request must have botocore's URL and be signed with botocore's credentials. If botocore refuses, or needs a method
that shardinit leaves to AWS's tools, no request may be sent."""

import contextlib
import datetime
import json
import os
import pathlib
import re
import subprocess
import tempfile
from unittest import mock

import pytest
from generated import generated, given
from hypothesis import strategies as st
from lying_store import lying_store
from object_store import error_of_signature
from support import BINARY

REGION = "eu-west-1"
OF_AWS = {"assume-role", "sso", "login"}  # Methods that shardinit leaves to AWS's own tools.
ROLES = "/latest/meta-data/iam/security-credentials/"


def keys_of(source, token):
    return {"AccessKeyId": f"AKID{source.upper()}", "SecretAccessKey": f"secret/of+{source}=",
            **({"SessionToken": f"token//of+{source}==", "Token": f"token//of+{source}=="} if token else {})}


def in_file(source, kind):
    """Returns the lines for keys in a profile file."""
    keys = keys_of(source, True)
    lines = {"aws_access_key_id": keys["AccessKeyId"], "aws_secret_access_key": keys["SecretAccessKey"]}
    if kind == "half":
        del lines["aws_secret_access_key"]
    if kind in ("session", "security"):
        lines[f"aws_{kind}_token"] = keys["Token"]
    return lines if kind != "none" else {}


KINDS = st.sampled_from(["none", "none", "none", "keys", "session", "security", "half"])


def some(*values):
    return st.sampled_from([None, None, *values])


def sections(where):
    """Draws the settings of a profile."""
    return st.fixed_dictionaries({
        "keys": KINDS, "process": some("keys", "session", "version", "fails", "null"),
        "endpoint_url": some(f"{where}_profile"),
        "services": some("here", "here", "absent"), "addressing_style": some("path", "virtual", "auto"),
        "ignore": some("true", "True", "false"), "decoy": st.booleans(), "role": some(None, "source", "web", "bare"),
        "sso": some(None, None, "sso_start_url", "sso_session"), "quirk": some("upper", "colon", "comment", "indent")})


def environments():
    return st.fixed_dictionaries({
        "env": KINDS, "profile": some("dev", "ops", "none"), "default_profile": some(None, "dev"),
        "credentials": st.dictionaries(st.sampled_from(["default", "dev", "ops", "profile dev"]), sections("shared"),
                                       max_size=2),
        "config": st.dictionaries(st.sampled_from(["default", "profile dev", 'profile "ops"', "dev", "DEFAULT"]),
                                  sections("config"), max_size=3),
        "with_services": st.booleans(),
        "broken": some(None, None, None, "[default]", "no delimiter", "key = 1\nkey = 2"),
        "s3": some("env_s3"), "all": some("env_all"), "ignore": some("true", "TRUE", "false"),
        "container": some("session"), "machine": some("session", "old", "404"),
        "web": some(None, "whole", "role"), "expires": st.sampled_from(["Z", "+05:30", "-08:00", ".123456+00:00"])})


def later(zone, hours=5):
    offset = re.search(r"[+-]\d\d:\d\d$", zone)
    delta = datetime.timedelta()
    if offset:
        sign = -1 if offset[0][0] == "-" else 1
        delta = sign * datetime.timedelta(hours=int(offset[0][1:3]), minutes=int(offset[0][4:]))
    time = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours) + delta
    return time.strftime("%Y-%m-%dT%H:%M:%S") + zone


def section(name, given, store, folder, source):
    """Returns a section of a file. Python's configparser, and so botocore, ignores the quirks."""
    lines = in_file(source, given["keys"])
    if given["process"]:
        lines["credential_process"] = f"sh {folder}/{given['process']}"
    for key in ("services", "endpoint_url"):
        if given[key]:
            lines[key] = f"{store.url}/{given[key]}" if key == "endpoint_url" else given[key]
    if given["ignore"]:
        lines["ignore_configured_endpoint_urls"] = given["ignore"]
    if given["role"]:
        lines["role_arn"] = "arn:aws:iam::123456789012:role/r"
        lines.update({"source": {"source_profile": "default"},
                      "web": {"web_identity_token_file": f"{folder}/token"}}.get(given["role"], {}))
    if given["sso"]:
        lines.update({given["sso"]: "mine", "sso_account_id": "1", "sso_role_name": "r"})
    between = ": " if given["quirk"] == "colon" else " = "
    text = f"[{name}]\n" + "".join(f"{key.upper() if given['quirk'] == 'upper' else key}{between}{value}\n" for key,
                                   value in lines.items())
    if given["quirk"] == "comment":
        text = text.replace("\n", "\n  # endpoint_url = http://127.0.0.1:1/\n\n; x\n")
    if given["quirk"] == "indent":
        text = text.replace("\n", "\n  ").rstrip() + "\n"  # All keys have the same indentation.
    indent = "  " if given["quirk"] == "indent" else ""
    if given["decoy"]:
        text += f"{indent}sqs =\n{indent}  endpoint_url = {store.url}/decoy\n{indent}  aws_access_key_id = AKIDDECOY\n"
    if given["addressing_style"]:
        text += f"{indent}s3 =\n{indent}    addressing_style = {given['addressing_style']}\n"
    return text


def prepared(case, store, folder):
    """Makes the files and services of a case and returns its environment."""
    when = later(case["expires"])
    (folder / "token").write_text("web.identity.token")
    outputs = {"keys": {"Version": 1, **keys_of("process", False)},
               "session": {"Version": 1, **keys_of("process", True), "Expiration": when},
               "null": {"Version": 1, **keys_of("process", False), "SessionToken": None, "Expiration": None},
               "version": {"Version": 2, **keys_of("process", False)}}
    for name, output in outputs.items():
        (folder / name).write_text(f"cat <<'END'\n{json.dumps(output)}\nEND\n")
    (folder / "fails").write_text("exit 3\n")
    for file in ("credentials", "config"):
        text = "".join(section(name, given, store, folder, f"{file}{number}") for number,
                       (name, given) in enumerate(case[file].items()))
        if file == "config":
            if case["with_services"]:
                text += f"[services here]\nsqs =\n  endpoint_url = {store.url}/decoy\ns3 =\n  endpoint_url = {store.url}/services\n"
            # botocore rejects a profile without its session, whatever the source of credentials.
            text += "[sso-session mine]\nsso_region = us-east-1\nsso_start_url = https://mine.awsapps.com/start\n"
            text += f"[last]\n{case['broken'] or ''}\n"
        (folder / file).write_text(text)
    xml = keys_of("web", True)
    store.services = {
        ("GET", "/container"): (200, json.dumps({**keys_of("container", True), "Expiration": when})),
        ("PUT", "/latest/api/token"): (404 if case["machine"] == "old" else 200, "imds"),
        ("GET", ROLES): (404, "none") if case["machine"] == "404" else (200, "role"),
        ("GET", ROLES + "role"): (200, json.dumps({**keys_of("machine", True), "Expiration": later("Z")})),
        ("POST", "/sts"): (200, "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                           f"<AccessKeyId>{xml['AccessKeyId']}</AccessKeyId><SecretAccessKey>{xml['SecretAccessKey']}</SecretAccessKey>"
                           f"<SessionToken>{xml['Token']}</SessionToken><Expiration>{when}</Expiration></Credentials>"
                           "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")}
    env = {"HOME": str(folder), "PATH": os.environ["PATH"], "AWS_CONFIG_FILE": "~/config",
           "AWS_SHARED_CREDENTIALS_FILE": "$HOME/credentials",
           "AWS_DEFAULT_REGION": REGION, "AWS_MAX_ATTEMPTS": "1", "https_proxy": store.url,
           "AWS_ENDPOINT_URL_STS": f"{store.url}/sts",
           "AWS_EC2_METADATA_DISABLED": "false" if case["machine"] else "TRUE",
           "AWS_EC2_METADATA_SERVICE_ENDPOINT": store.url}
    names = {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
             "aws_session_token": "AWS_SESSION_TOKEN", "aws_security_token": "AWS_SECURITY_TOKEN"}
    env.update({names[key]: value for key, value in in_file("env", case["env"]).items()})
    for name, key, form in (("AWS_PROFILE", "profile", "{}"), ("AWS_DEFAULT_PROFILE", "default_profile", "{}"),
                            ("AWS_ENDPOINT_URL_S3", "s3", store.url + "/{}"),
                            ("AWS_ENDPOINT_URL", "all", store.url + "/{}"),
                            ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "ignore", "{}")):
        if case[key]:
            env[name] = form.format(case[key])
    if case["container"]:
        env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"{store.url}/container"
    if case["web"]:
        env["AWS_WEB_IDENTITY_TOKEN_FILE"] = str(folder / "token")
        if case["web"] == "whole":
            env["AWS_ROLE_ARN"] = "arn:aws:iam::123456789012:role/e"
    return env


def botocore_request(env):
    """Returns (method, key, secret, token) and the URL of an object from botocore; or an exception."""
    import botocore.session

    with mock.patch.dict(os.environ, env, clear=True):
        method = None
        try:
            session = botocore.session.Session()
            found = session.get_credentials()
            method = found and found.method
            client = session.create_client("s3", aws_access_key_id="x", aws_secret_access_key="y")
            sent = []

            def stop(request, **_):
                sent.append(request.url)
                raise TimeoutError

            client.meta.events.register("before-send.s3", stop)
            with contextlib.suppress(TimeoutError):
                client.get_object(Bucket="bucket", Key="a/plan.json")
            [url] = sent
            frozen = found and found.get_frozen_credentials() if method not in OF_AWS else None
            return method, frozen and (frozen.access_key, frozen.secret_key, frozen.token), url
        except Exception as error:
            return method, error, None


@pytest.fixture(scope="module")
def store():
    with lying_store() as running:
        yield running


@generated(60)
@given(case=environments())
def test_random_credentials_are_resolved_like_botocore(store, case):
    with tempfile.TemporaryDirectory() as scratch:
        env = prepared(case, store, pathlib.Path(scratch))
        method, keys, url = botocore_request(env)
        store.asked = []
        done = subprocess.run([BINARY, "status", "s3://bucket/a"], env=env, capture_output=True, text=True, timeout=60,
                              check=False)
    # A proxy sees the hosts of AWS; STS is a credential service.
    sent = [request for request in store.asked if request.path.endswith("/plan.json")
            or (request.method == "CONNECT" and not request.target.startswith("sts."))]
    if isinstance(keys, Exception) or method in OF_AWS:
        assert done.returncode in (2, 3, 5) and not sent, (method, keys, done)
        lacks_section = not case["with_services"] and "no section `[services here]`" in done.stderr  # is reported first
        assert "own tool" in done.stderr or lacks_section or method not in OF_AWS, done
        return
    assert sent, (method, keys, url, done)
    for request in sent:
        if request.method == "CONNECT":  # The proxy sees only the host.
            assert url.startswith(f"https://{request.target.removesuffix(':443')}/"), (url, request.target)
            continue
        assert store.url + request.path == url
        if keys is None:
            assert "authorization" not in request.headers and "x-amz-security-token" not in request.headers
            continue
        key, secret, token = keys
        assert error_of_signature(request, {key: (secret, token)}, REGION) is None, (method, request.headers, done)
    services = [request.path for request in store.asked if request not in sent]
    assert len(services) <= 3 and len(services) == len(set(services)), services
