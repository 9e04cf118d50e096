//! How the process of a `Workload` is run: which settings are accepted, and how each mistake is refused.

#![expect(clippy::unwrap_used, reason = "test code")]

use leno_resources::{
    ConcurrencyPolicy, DependencyCondition, Object, PortRef, RestartPolicy, WorkloadSpec, parse,
};

fn document(spec: &str) -> String {
    format!("apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: web}}\nspec:\n{spec}")
}

fn spec(text: &str) -> WorkloadSpec {
    let documents = parse("mesh.yaml", &document(text)).unwrap();
    let Object::Workload(web) = &documents.objects[0].value else { panic!("not a workload") };
    web.spec.clone()
}

fn problems(text: &str) -> Vec<String> {
    let problems = parse("mesh.yaml", &document(text)).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_probe_is_written_as_in_kubernetes() {
    let spec = spec(
        "  command: [a]
  ports: [{name: http, port: 8080}]
  user: 1000
  restart: on-failure
  dependsOn: {db: {condition: completed}, shop/cache: {}}
  stopSignal: quit
  resources: {limits: {cpu: 0.5, memory: 64Mi}}
  readiness:
    httpGet: {path: /ready, port: http, scheme: HTTP, httpHeaders: [{name: Host, value: a}]}
    initialDelaySeconds: 1
  liveness: {tcpSocket: {port: 8080}, periodSeconds: 2, failureThreshold: 1}
",
    );
    let readiness = spec.readiness.unwrap();
    let get = readiness.http_get.unwrap();
    assert_eq!((get.path.as_str(), get.port), ("/ready", PortRef::Name("http".into())));
    assert_eq!((readiness.initial_delay_seconds, readiness.period_seconds), (1, 10));
    assert_eq!(spec.liveness.unwrap().failure_threshold, 1);
    assert_eq!(spec.user.unwrap().0, "1000");
    assert_eq!(spec.restart, RestartPolicy::OnFailure);
    assert_eq!(spec.depends_on["db"].condition, DependencyCondition::Completed);
    assert_eq!(spec.depends_on["shop/cache"].condition, DependencyCondition::Ready);
    assert_eq!(spec.stop_signal.unwrap().0, "SIGQUIT");
    assert_eq!(spec.resources.limits.cpu.unwrap().0, 500);
}

#[test]
fn all_mistakes_are_refused_at_once_each_with_its_line_and_what_to_write() {
    let found = problems(
        "  command: [a]
  ports: [{name: http, port: 8080}]
  user: 'app:app'
  restart: unless-stopped
  stopSignal: SIGTREM
  stopGracePeriod: 10
  resources: {limits: {cpu: 2x, memory: 256mb}}
",
    );
    assert_eq!(
        found,
        [
            "mesh.yaml:7:9: spec.user: \"app:app\" is two names: write user and group each in its field",
            "mesh.yaml:8:12: spec.restart: \"unless-stopped\" is not one of always, on-failure, never",
            "mesh.yaml:9:15: spec.stopSignal: \"SIGTREM\" is not one of SIGHUP, SIGINT, SIGQUIT, SIGABRT, \
             SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGWINCH, SIGPWR: did you mean SIGTERM?",
            "mesh.yaml:10:20: spec.stopGracePeriod: 10 has no unit: write a duration, such as 10s",
            "mesh.yaml:11:29: spec.resources.limits.cpu: \"2x\" is not an amount of CPU: write 500m, 0.5 or 2",
            "mesh.yaml:11:41: spec.resources.limits.memory: \"256mb\" is not an amount of memory: write 256Mi, \
             1Gi or bytes",
        ]
    );
    let found = problems(
        "  command: [a]
  ports: [{name: http, port: 8080}]
  volumes:
  - {path: '', mountPath: srv}
  - {path: data, mountPath: /etc}
  init: [{command: []}]
  dependsOn: {Db: {}}
  readiness:
    httpGet: {path: ready, port: htpp, scheme: HTTPS}
    periodSeconds: 0
  liveness: {successThreshold: 2}
",
    );
    assert_eq!(
        found,
        [
            "mesh.yaml:8:12: spec.volumes[0].path: is not the name of a file or directory",
            "mesh.yaml:8:27: spec.volumes[0].mountPath: \"srv\" is not an absolute path without ..",
            "mesh.yaml:9:29: spec.volumes[1].mountPath: would hide /etc/resolv.conf: mount it below, or elsewhere",
            "mesh.yaml:10:20: spec.init[0].command: is empty: name the program to run",
            "mesh.yaml:11:19: spec.dependsOn.Db: \"Db\" is not a name: use 1 to 63 of a-z, 0-9 and '-', with no '-' at \
             either end",
            "mesh.yaml:13:21: spec.readiness.httpGet.path: \"ready\" is not a path: write /ready",
            "mesh.yaml:13:34: spec.readiness.httpGet.port: \"htpp\" is not the name of a port of this workload: did \
             you mean http?",
            "mesh.yaml:13:48: spec.readiness.httpGet.scheme: https is not probed: use exec with a command such as \
             curl -k",
            "mesh.yaml:14:20: spec.readiness.periodSeconds: 0 is not from 1 to 3600",
            "mesh.yaml:15:13: spec.liveness: probes nothing: write httpGet, grpc, tcpSocket or exec",
            "mesh.yaml:15:32: spec.liveness.successThreshold: is 1 for liveness: one success shows that the process \
             lives",
        ]
    );
}

#[test]
fn a_place_is_mounted_on_once() {
    assert_eq!(
        problems(
            "  command: [a]\n  volumes: [{path: a, mountPath: /mnt}, {path: b, mountPath: /mnt/}]\n"
        ),
        ["mesh.yaml:6:62: spec.volumes[1].mountPath: \"/mnt/\" is used by an earlier volume"]
    );
}

#[test]
fn a_probe_that_is_misspelt_names_what_was_meant() {
    assert_eq!(
        problems("  command: [a]\n  readiness: {httpget: {port: 80}}\n"),
        ["mesh.yaml:6:15: spec.readiness.httpget: unknown field: did you mean httpGet?"]
    );
    assert_eq!(
        problems("  command: [a]\n  readiness: {tcpSocket: {port: 0}}\n"),
        ["mesh.yaml:6:33: spec.readiness.tcpSocket.port: 0 is not a port: use 1 to 65535"]
    );
}

#[test]
fn an_amount_of_memory_may_be_written_in_bytes_up_to_a_pebibyte_and_more() {
    let memory = |text: &str| {
        let spec = spec(&format!("  command: [a]\n  resources: {{limits: {{memory: {text}}}}}\n"));
        spec.resources.limits.memory.unwrap().0
    };
    assert_eq!(memory("1000000000000001"), 1_000_000_000_000_001);
    assert_eq!(memory("1.5Ti"), 3 << 39);
    let found = problems("  command: [a]\n  resources: {limits: {memory: 999999999999999999Ti}}\n");
    assert!(found[0].contains("is not an amount of memory"), "{found:?}");
}

#[test]
fn a_schedule_is_written_as_in_kubernetes() {
    let spec = spec(
        "  command: [a]
  cron:
    schedule: '*/5 * * * *'
    timeZone: Europe/Berlin
    concurrencyPolicy: Forbid
    startingDeadlineSeconds: 60
    suspend: true
",
    );
    let cron = spec.cron.unwrap();
    assert_eq!(cron.schedule.to_string(), "*/5 * * * *");
    assert_eq!(cron.time_zone.as_deref(), Some("Europe/Berlin"));
    assert_eq!(cron.concurrency_policy, ConcurrencyPolicy::Forbid);
    assert_eq!((cron.starting_deadline_seconds, cron.suspend), (Some(60), true));
}

#[test]
fn wrong_schedules_are_refused_with_their_line_and_what_to_write() {
    let found = problems(
        "  command: [a]
  cron:
    schedule: 61 * * * *
    concurrencyPolicy: Never
",
    );
    assert_eq!(
        found,
        [
            "mesh.yaml:7:15: spec.cron.schedule: \"61 * * * *\" is not a schedule: its minute is \"61\": write 0 to \
             59, *, lists (1,2), ranges (1-5) or steps (*/5)",
            "mesh.yaml:8:24: spec.cron.concurrencyPolicy: \"Never\" is not one of Allow, Forbid, Replace",
        ]
    );
    let found = problems(
        "  command: [a]
  root: img
  workingDir: srv
  ports: [{port: 80}]
  cron: {schedule: '@daily', timeZone: ../etc/passwd, startingDeadlineSeconds: 0}
",
    );
    assert_eq!(
        found,
        [
            "mesh.yaml:7:15: spec.workingDir: \"srv\" is not in the root: write an absolute path, such as /srv",
            "mesh.yaml:8:10: spec.ports: a workload that runs on a schedule takes no traffic: remove it, or cron",
            "mesh.yaml:9:40: spec.cron.timeZone: \"../etc/passwd\" is not the name of a time zone: write UTC or \
             Europe/Berlin",
            "mesh.yaml:9:80: spec.cron.startingDeadlineSeconds: 0 is not from 1 to 31536000",
        ]
    );
}
