//! The pod of a service of the real application: its image, with the settings from the file of
//! images.

use serde_json::{Value, json};

use crate::cluster::names::PORT_NAME;
use crate::real_application::images::{Image, Privileges};

/// How often a startup probe may fail, at one per second. The wait for the pods ends before that.
const STARTS: u32 = 600;

/// Points a Service at the port of an image, under the port that callers use.
pub(super) fn listen(service: &mut Value, image: &Image) {
    let port = &mut service["spec"]["ports"][0];
    port["port"] = json!(image.service_port);
    port["targetPort"] = json!(image.port);
    if let Some(protocol) = image.app_protocol {
        port["appProtocol"] = json!(protocol.as_str());
    }
}

/// The pod of the suite's own service, with the container of an image instead.
pub(super) fn pod(mut pod: Value, image: &Image) -> Value {
    let spec = &mut pod["spec"];
    let mut container = spec["containers"][0].take();
    container["image"] = json!(image.image);
    let fields = container.as_object_mut().expect("a container has fields");
    fields.remove("args");
    let given = |words: &[String]| (!words.is_empty()).then(|| json!(words));
    for (field, words) in [("command", given(&image.command)), ("args", given(&image.args))] {
        fields.extend(words.map(|words| (field.to_owned(), words)));
    }
    if !image.env.is_empty() {
        let one = |(name, value): (&String, &String)| json!({"name": name, "value": value});
        container["env"] = image.env.iter().map(one).collect();
    }
    container["ports"] = json!([{"name": PORT_NAME, "containerPort": image.port}]);
    // A startup probe, because no probe follows after it succeeds: databases count connections
    // without data as errors.
    container["startupProbe"] = json!({"tcpSocket": {"port": image.port}, "periodSeconds": 1,
            "failureThreshold": STARTS});
    // Puts the reason why a container ended into its status, which the bench reads before it
    // removes the namespace.
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    match image.privileges {
        Privileges::Restricted => {
            if let Some(user) = image.user {
                spec["securityContext"]["runAsUser"] = json!(user);
                spec["securityContext"]["runAsGroup"] = json!(user);
            }
        }
        Privileges::Image => {
            container.as_object_mut().expect("a container has fields").remove("securityContext");
            spec["securityContext"] = json!({"seccompProfile": {"type": "RuntimeDefault"}});
        }
    }
    spec["containers"] = json!([container]);
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::manifests::tests::objects_of;
    use crate::cluster::mesh::Mesh;
    use crate::real_application::images::Images;

    #[test]
    fn only_services_are_others_and_they_are_restricted_unless_they_say_more() {
        let text = "{scenario: faces, services: {face: {image: a, user: 7, command: [/face], args: [-port, \"80\"], \
                    port: 80}, smiley: {image: b}, color: {image: c, privileges: image}}}";
        let images: Images = serde_saphyr::from_str(text).unwrap();
        let own = objects_of(Mesh::None, "faces", None);
        let real = objects_of(Mesh::None, "faces", Some(&images));
        let name = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
        assert!(own.iter().map(name).eq(real.iter().map(name)));
        let differ =
            own.iter().zip(&real).filter(|(one, two)| one != two).map(|(one, _)| name(one));
        let differ: Vec<_> = differ.collect();
        let pod = |service: &str| (json!("Pod"), json!(service));
        let wanted = [(json!("Service"), json!("face")), pod("face"), pod("smiley"), pod("color")];
        assert_eq!(differ, wanted, "and the Service of the one that listens elsewhere");
        let of = |service: &str| {
            let found = real.iter().find(|object| name(object) == pod(service)).unwrap();
            (found["spec"]["securityContext"].clone(), found["spec"]["containers"][0].clone())
        };
        let (user, face) = of("face");
        assert_eq!((&user["runAsUser"], &user["runAsNonRoot"]), (&json!(7), &json!(true)));
        assert_eq!((&face["command"], &face["args"]), (&json!(["/face"]), &json!(["-port", "80"])));
        assert_eq!(face["startupProbe"]["tcpSocket"]["port"], 80);
        let (user, smiley) = of("smiley");
        assert_eq!(user["runAsUser"], 65532);
        assert_eq!(smiley["securityContext"]["readOnlyRootFilesystem"], true);
        assert!(smiley.get("args").is_none() && smiley.get("env").is_none(), "{smiley}");
        let (user, color) = of("color");
        assert!(user.get("runAsUser").is_none() && color.get("securityContext").is_none());
    }
}
