//! Tests how long a request waits for a server that has accepted the request and does not answer.

use crate::mesh::{Mesh, out, root, with_server};

/// `hung` and `patient` accept requests and never answer them. A policy sets how long requests to `patient` may
/// wait.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -c, @SERVER@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: hung, namespace: shop}
spec: {command: [python3, -c, @HUNG@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: patient, namespace: shop}
spec: {command: [python3, -c, @HUNG@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: patient, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: patient}]
  timeouts: {response: 24h}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec: {command: [sleep, infinity]}
";

/// A server that accepts connections and reads, but never answers.
const HUNG: &str = "import socketserver as s
class H(s.BaseRequestHandler):
    def handle(self):
        while self.request.recv(65536): pass
s.ThreadingTCPServer(('', 8080), H).serve_forever()
";

#[test]
fn a_hung_server_is_waited_for_as_long_as_up_or_a_policy_says() {
    let yaml = with_server(MESH).replace("@HUNG@", &format!("{HUNG:?}"));
    let mesh = root(|| {
        let mesh = Mesh::draft(&yaml);
        let up = mesh.detached(&["--wait", "--response-wait", "1s"]);
        assert!(up.status.success(), "{up:?}");
        mesh
    });
    let Some(mesh) = mesh else { return };
    let ask = |server: &str, seconds: &str| {
        let url = format!("http://{server}:8080/");
        let said = "%{http_code} %header{leno-error}";
        let curl = ["curl", "-s", "-o", "/dev/null", "-m", seconds, "-w", said, &url];
        let output = mesh.exec("client", &curl);
        (output.status.code(), out(&output).trim().to_owned())
    };
    assert_eq!(ask("web", "20"), (Some(0), "200".to_owned()));
    assert_eq!(ask("hung", "20"), (Some(0), "504 stalled".to_owned()));
    // Here the client stops waiting first: curl exits with 28.
    assert_eq!(ask("patient", "4"), (Some(28), "000".to_owned()));
    // One line of the policy decides, and an edit of it takes effect while the mesh runs.
    mesh.edit(&yaml.replace("response: 24h", "response: 1s"));
    mesh.wait_for("the edit", || ask("patient", "20").1.starts_with("504 "));
    assert!(mesh.run(&["down"]).status.success());
}
