"""Who gets in: certificates, roles, tokens. Each refusal has a twin that is let in."""

import socket

import grpc
import pytest
from certificates import Authority
from jobs_by_hand import as_json
from programs import COORDINATOR, ENDLESS_JOB, SMALL_JOB, TESSERA, WORKER
from raw_calls import call, text, until
from reflection import Reflection

CODES = grpc.StatusCode
HEALTH = "/grpc.health.v1.Health/Check"
LIST = "/tessera.v1.JobService/ListJobs"
JOIN_HOST, JOIN_RANK = 1, 2

# Written down once more, so that a rule that is loosened is seen.
READERS = {"operator", "viewer"}
RULES = {
    "tessera.v1.JobService": {
        "CreateJob": {"operator"},
        "GetJob": READERS,
        "ListJobs": READERS,
        "WatchJob": READERS,
        "CancelJob": {"operator"},
        "DrainJob": {"operator"},
        "ListWorkers": READERS,
        "ListIncidents": READERS,
    },
    "tessera.v1.PlanService": {
        "CreatePlan": {"operator"},
        "GetPlan": READERS,
        "ListPlanUnits": READERS,
        "ExplainModule": {"operator"},
    },
    "tessera.v1.StatsService": {"GetStats": READERS},
    "tessera.v1.MembershipService": {
        "Attend": {"worker"},
        "ListUnits": {"worker"},
        "AnnounceModule": {"worker"},
        "ChangeModelDType": {"worker"},
        "ReportStats": {"worker"},
        "PublishCommunicatorIds": {"worker"},
        "FetchCommunicatorIds": {"worker"},
    },
    "grpc.health.v1.Health": {
        "Check": {"operator", "viewer", "worker", "none"},
        "Watch": {"operator", "viewer", "worker", "none"},
    },
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": READERS},
}


class Cluster:
    """An authority, a coordinator with its certificate, and one identity for each role."""

    def __init__(self, sandbox, *flags):
        self.authority = Authority(sandbox.directory)
        self.server = self.authority.issue("coordinator")
        self.program, self.address = sandbox.start_coordinator(*self.server.flags(), *flags)
        self.where = f"--coordinator={self.address}"
        self._sandbox = sandbox
        self._issued = {}

    def identity(self, role):
        if role not in self._issued:
            uris = [] if role == "none" else [f"tessera://{role}"]
            self._issued[role] = self.authority.issue(role.replace("/", "-"), *uris)
        return self._issued[role]

    def channel(self, role):
        return self.identity(role).channel(self.address)

    def call(self, role, method, request=b"", streams=(False, False)):
        with self.channel(role) as channel:
            return call(channel, method, request, streams)

    def tessera(self, role, *argv):
        return self._sandbox.tessera(*argv, self.where, *self.identity(role).flags())


@pytest.fixture
def cluster(sandbox):
    return Cluster(sandbox)


def test_every_method_has_a_rule_and_each_role_gets_what_the_rule_says(cluster):
    with cluster.channel("operator") as channel:
        remote = Reflection(cluster.address, channel)
        methods = {service: remote.methods(service) for service in remote.services()}
    assert {
        service: {name for name, *_ in listed} for service, listed in methods.items()
    } == {service: set(rules) for service, rules in RULES.items()}

    for role in ("operator", "viewer", "worker", "none"):
        with cluster.channel(role) as channel:
            for service, listed in methods.items():
                for name, *streams in listed:
                    # An empty message: what is let in fails otherwise, or not at all.
                    got = call(channel, f"/{service}/{name}", b"", tuple(streams))
                    assert got.refused == (role not in RULES[service][name]), (role, name, got)
                    if got.refused:
                        assert got.code == CODES.PERMISSION_DENIED
                        assert got.reason == ("NO_ROLE" if role == "none" else "ROLE_DENIED")
                        assert name in got.message


def test_a_worker_of_one_job_touches_no_other(cluster):
    job = cluster.tessera("operator", "submit", f"--job={_write(cluster, SMALL_JOB)}")
    assert job.code == 0, job.transcript()
    bound = cluster.identity("worker/small")
    with bound.channel(cluster.address) as channel:
        for name in RULES["tessera.v1.MembershipService"].keys() - {"Attend"}:
            method = f"/tessera.v1.MembershipService/{name}"
            for other in ("other", ""):
                got = call(channel, method, text(1, other) if other else b"")
                assert (got.code, got.reason) == (CODES.PERMISSION_DENIED, "OTHER_JOB"), (name, got)
            # The last of two is what counts, as it does for whoever reads the message.
            assert call(channel, method, text(1, "small") + text(1, "other")).reason == "OTHER_JOB"
            assert not call(channel, method, text(1, "small")).refused, name

        attend = "/tessera.v1.MembershipService/Attend"
        both = (True, True)
        for refused in (
            text(JOIN_HOST, text(3, "other")),
            text(JOIN_HOST, b""),
            text(JOIN_HOST, text(3, "small") + text(7, "other")),
            text(JOIN_RANK, text(1, "other")),
        ):
            got = call(channel, attend, refused, both)
            assert (got.code, got.reason) == (CODES.PERMISSION_DENIED, "OTHER_JOB"), got
        for accepted in (text(JOIN_HOST, text(3, "small")), text(JOIN_RANK, text(1, "small"))):
            assert not call(channel, attend, accepted, both).refused


def _write(cluster, job):
    return cluster._sandbox.write_job(job)  # noqa: SLF001


@pytest.mark.parametrize("uri", ["tessera://worker/", "tessera://admin", "spiffe://operator"])
def test_an_identity_that_is_none_gives_no_role(cluster, uri):
    identity = cluster.authority.issue("odd", uri)
    with identity.channel(cluster.address) as channel:
        for method in (LIST, "/tessera.v1.MembershipService/ListUnits"):
            assert call(channel, method, text(1, "small")).reason == "NO_ROLE"


def test_a_job_runs_under_tls_with_ranks_that_inherit_their_worker_s_certificate(cluster, sandbox):
    assert cluster.tessera("operator", "submit", f"--job={_write(cluster, SMALL_JOB)}").code == 0
    other = sandbox.run(
        WORKER, cluster.where, "--job=small", *cluster.identity("worker/other").flags()
    )
    assert other.code != 0
    assert "worker/other" not in other.err[-1] and "OTHER" not in other.err[-1]
    assert "workers of other alone" in other.err[-1], other.transcript()
    agent = sandbox.start(
        WORKER,
        cluster.where,
        "--local_workers=2",
        "--job=small",
        *cluster.identity("worker/small").flags(),
    )
    watch = cluster.tessera("viewer", "watch", "small")
    assert watch.code == 0, watch.transcript()
    assert agent.wait() == 0, agent.transcript()
    denied = cluster.tessera("viewer", "cancel", "small")
    assert denied.code == 1
    assert denied.err == [
        "tessera: /tessera.v1.JobService/CancelJob takes the role operator; "
        "this is tessera://viewer"
    ]


def _unreachable(channel):
    got = call(channel, LIST)
    assert got.code == CODES.UNAVAILABLE, got


def test_who_cannot_connect(cluster, sandbox):
    stranger = Authority(sandbox.directory, "stranger").issue("op", "tessera://operator")
    expired = cluster.authority.issue("expired", "tessera://operator", days=-1)
    good = cluster.identity("operator")

    # A client of another CA that trusts ours; one that has expired; one that shows none.
    stranger.ca.write_bytes(good.ca.read_bytes())
    for identity in (stranger, expired):
        with identity.channel(cluster.address) as channel:
            _unreachable(channel)
    nameless = grpc.ssl_channel_credentials(good.ca.read_bytes())
    with grpc.secure_channel(cluster.address, nameless) as channel:
        _unreachable(channel)
    # Plaintext to TLS.
    with grpc.insecure_channel(cluster.address) as channel:
        _unreachable(channel)
    # TLS to plaintext.
    _, plain = sandbox.start_coordinator()
    with good.channel(plain) as channel:
        _unreachable(channel)
    with grpc.insecure_channel(plain) as channel:
        assert call(channel, LIST).code == CODES.OK
    with good.channel(cluster.address) as channel:
        assert call(channel, LIST).code == CODES.OK


def test_a_client_does_not_trust_whoever_answers(cluster, sandbox):
    impostor = Authority(sandbox.directory, "impostor").issue("coordinator")
    _, address = sandbox.start_coordinator(*impostor.flags())
    flags = cluster.identity("operator").flags()
    lists = sandbox.tessera("list", f"--coordinator={address}", *flags)
    assert lists.code == 3 and len(lists.err) == 1, lists.transcript()
    assert "certificate" in lists.err[0]
    assert sandbox.tessera("list", cluster.where, *flags).code == 0
    # The same by the environment, and without TLS.
    environment = cluster.identity("operator").environment()
    assert sandbox.tessera("list", cluster.where, **environment).code == 0
    plain = sandbox.tessera("list", cluster.where)
    assert plain.code == 3 and len(plain.err) == 1, plain.transcript()


def test_certificates_are_replaced_while_all_is_running(cluster, sandbox):
    cluster.tessera("operator", "submit", f"--job={_write(cluster, ENDLESS_JOB)}")
    agent = sandbox.start(
        WORKER, cluster.where, "--local_workers=2", *cluster.identity("worker").flags()
    )
    old = cluster.identity("operator")
    watch = sandbox.start(TESSERA, "watch", "endless", cluster.where, *old.flags())
    watch.wait_for_line("step ")

    renewed = Authority(sandbox.directory, "renewed")
    new = renewed.issue("operator", "tessera://operator")
    cluster.server.replace_with(renewed.issue("coordinator"))
    def try_new():
        with new.channel(cluster.address) as channel:
            return call(channel, LIST)

    until(CODES.OK, try_new)
    with old.channel(cluster.address) as channel:
        _unreachable(channel)
    # What stands goes on: the watch hears of two more steps.
    seen = len(watch.out)
    watch.wait_for_line("step ", _After(watch.out, seen))
    watch.wait_for_line("step ", _After(watch.out, seen + 1))
    assert agent.running()
    flags = [cluster.where, *new.flags()]
    assert sandbox.tessera("cancel", "endless", *flags).code == 0
    watch.wait()
    agent.wait()


class _After:
    """The lines of a program from one on, as it goes on."""

    def __init__(self, lines, first):
        self._lines, self._first = lines, first

    def __len__(self):
        return max(0, len(self._lines) - self._first)

    def __getitem__(self, part):
        return self._lines[self._first :][part]


@pytest.mark.parametrize("left_out", [0, 1, 2])
@pytest.mark.parametrize("program", [COORDINATOR, WORKER, TESSERA])
def test_the_files_of_tls_go_together(sandbox, left_out, program):
    flags = Authority(sandbox.directory).issue("x", "tessera://operator").flags()
    missing = flags.pop(left_out).split("=")[0]
    argv = {
        COORDINATOR: ["--listen=127.0.0.1:0"],
        WORKER: ["--coordinator=127.0.0.1:1"],
        TESSERA: ["list", "--coordinator=127.0.0.1:1"],
    }[program]
    ended = sandbox.run(program, *argv, *flags)
    assert ended.code == 2 and len(ended.err) == 1, ended.transcript()
    assert missing in ended.err[0]


def test_files_that_are_wrong_are_told_at_once(sandbox):
    authority = Authority(sandbox.directory)
    good, other = authority.issue("good"), authority.issue("other")
    expired = authority.issue("expired", days=-1)
    for flag, path, says in (
        ("--tls_key_file", other.key, "is not the key of"),
        ("--tls_key_file", good.cert, "no private key"),
        ("--tls_cert_file", good.key, "no certificate"),
        ("--tls_cert_file", sandbox.directory / "none", "cannot be read"),
        ("--tls_cert_file", expired.cert, "has expired"),
    ):
        flags = [part for part in good.flags() if not part.startswith(flag)]
        ended = sandbox.run(COORDINATOR, "--listen=127.0.0.1:0", f"{flag}={path}", *flags)
        assert ended.code == 2 and len(ended.err) == 1, ended.transcript()
        assert flag in ended.err[0] and says in ended.err[0], ended.err


def test_only_tls_or_insecure_leaves_this_machine(sandbox):
    flags = Authority(sandbox.directory).issue("coordinator").flags()
    refused = sandbox.run(COORDINATOR, "--listen=0.0.0.0:0")
    assert refused.code == 2 and "--listen" in refused.err[0], refused.transcript()
    for accepted in (flags, ["--insecure"]):
        sandbox.start(COORDINATOR, "--listen=0.0.0.0:0", *accepted).wait_for_line("listening ")
    # TLS alone would let everybody in.
    half = sandbox.run(COORDINATOR, *flags, "--tls_require_client_cert=false")
    assert half.code == 2 and "--tls_require_client_cert" in half.err[0], half.transcript()


TOKEN = "b7e151628aed2a6abf7158809cf4f3c7"


def _token_file(sandbox, name, token):
    path = sandbox.directory / name
    path.write_text(f"{token}\n", encoding="utf-8")
    return path


def test_a_token_lets_in_whoever_has_it(sandbox):
    path = _token_file(sandbox, "token", TOKEN)
    other = _token_file(sandbox, "other", TOKEN[::-1])
    coordinator, address = sandbox.start_coordinator(f"--token_file={path}")
    with grpc.insecure_channel(address) as channel:
        assert call(channel, LIST).reason == "NO_CREDENTIALS"
        for wrong in (f"Bearer {TOKEN[::-1]}", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN[:-1]}"):
            got = call(channel, LIST, metadata=[("authorization", wrong)])
            assert (got.code, got.reason) == (CODES.UNAUTHENTICATED, "WRONG_TOKEN")
        twice = [("authorization", f"Bearer {TOKEN}")] * 2
        assert call(channel, LIST, metadata=twice).reason == "WRONG_TOKEN"
        assert call(channel, LIST, metadata=twice[:1]).code == CODES.OK
        assert call(channel, HEALTH).code == CODES.OK

    where = f"--coordinator={address}"
    assert sandbox.tessera("list", where).code == 1
    assert sandbox.tessera("list", where, f"--token_file={other}").code == 1
    refused = sandbox.run(WORKER, where)
    assert refused.code != 0 and "--token_file" in refused.err[-1], refused.transcript()
    job = f"--job={sandbox.write_job(SMALL_JOB)}"
    submitted = sandbox.tessera("submit", job, where, TESSERA_TOKEN_FILE=str(path))
    assert submitted.code == 0, submitted.transcript()
    agent = sandbox.start(WORKER, where, "--local_workers=2", f"--token_file={path}")
    watch = sandbox.tessera("watch", "small", where, f"--token_file={path}")
    assert watch.code == 0, watch.transcript()
    assert agent.wait() == 0, agent.transcript()
    for program in (coordinator, agent, watch, submitted):
        assert TOKEN not in program.transcript() + "".join(program.argv)


def test_a_token_is_replaced_while_the_coordinator_runs(sandbox):
    path = _token_file(sandbox, "token", TOKEN)
    _, address = sandbox.start_coordinator(f"--token_file={path}")
    path.write_text(TOKEN[::-1], encoding="utf-8")
    with grpc.insecure_channel(address) as channel:
        new = [("authorization", f"Bearer {TOKEN[::-1]}")]
        until(CODES.OK, lambda: call(channel, LIST, metadata=new))
        old = call(channel, LIST, metadata=[("authorization", f"Bearer {TOKEN}")])
        assert old.reason == "WRONG_TOKEN"


def test_a_token_does_not_cross_a_network_in_the_clear(sandbox):
    path = _token_file(sandbox, "token", TOKEN)
    flag = f"--token_file={path}"
    server = sandbox.run(COORDINATOR, "--listen=0.0.0.0:0", "--insecure", flag)
    assert server.code == 2 and "--token_file" in server.err[0], server.transcript()
    # Nobody is even asked for a connection.
    with socket.create_server(("0.0.0.0", 0)) as listener:
        address = f"{socket.gethostname()}:{listener.getsockname()[1]}"
        for program, argv in ((TESSERA, ["list"]), (WORKER, [])):
            client = sandbox.run(program, *argv, f"--coordinator={address}", flag)
            assert client.code == 2 and "--token_file" in client.err[0], client.transcript()
            assert TOKEN not in client.transcript()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_token_over_tls_needs_no_certificate_of_the_client(sandbox):
    server = Authority(sandbox.directory).issue("coordinator")
    path = _token_file(sandbox, "token", TOKEN)
    anonymous = "--tls_require_client_cert=false"
    _, address = sandbox.start_coordinator(*server.flags(), anonymous, f"--token_file={path}")
    flags = [f"--coordinator={address}", f"--tls_ca_file={server.ca}", anonymous]
    listed = as_json(sandbox.tessera("list", "--output=json", *flags, f"--token_file={path}"))
    assert listed["jobs"] == []
    assert sandbox.tessera("list", *flags).code == 1


@pytest.mark.parametrize("content", ["", "short", "spaces in a token of length", "x" * 5000])
def test_a_file_that_holds_no_token_is_refused_and_not_quoted(sandbox, content):
    path = _token_file(sandbox, "token", content)
    ended = sandbox.run(COORDINATOR, f"--token_file={path}")
    assert ended.code == 2 and "--token_file" in ended.err[0], ended.transcript()
    assert not content or content not in ended.err[0]
