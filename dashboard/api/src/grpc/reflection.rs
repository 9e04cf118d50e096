//! Answers gRPC's server reflection, with which tools such as grpcurl find the methods and messages.

use prost::Message as _;

use super::status::{Code, Status};
use proto::server_reflection_request::MessageRequest;
use proto::server_reflection_response::MessageResponse;

#[expect(
    clippy::enum_variant_names,
    unreachable_pub,
    reason = "generated; dashboard/api/proto has the comments"
)]
mod proto {
    include!("../generated/grpc.reflection.v1.rs");
}

/// The paths for the version that present tools use and for the version before it. Both versions have the same
/// messages.
pub(super) const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
/// The one proto file, as a `FileDescriptorProto`.
const DESCRIBED: &[u8] = include_bytes!("../generated/dashboard.bin");
const FILE: &str = "leno/dashboard/v1/dashboard.proto";
const PACKAGE: &str = "leno.dashboard.v1.";
const SERVICE: &str = "leno.dashboard.v1.Dashboard";

/// The answer to one request.
pub(super) fn answer(question: &[u8]) -> Result<Vec<u8>, Status> {
    let question = proto::ServerReflectionRequest::decode(question)
        .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    let described = || {
        let file_descriptor_proto = vec![DESCRIBED.to_vec()];
        MessageResponse::FileDescriptorResponse(proto::FileDescriptorResponse {
            file_descriptor_proto,
        })
    };
    let unknown = |what: &str| {
        MessageResponse::ErrorResponse(proto::ErrorResponse {
            error_code: Code::NotFound as i32,
            error_message: format!("{what} is unknown: the service is {SERVICE}"),
        })
    };
    let answer = match &question.message_request {
        Some(MessageRequest::ListServices(_)) => {
            let service = vec![proto::ServiceResponse { name: SERVICE.to_owned() }];
            MessageResponse::ListServicesResponse(proto::ListServiceResponse { service })
        }
        Some(MessageRequest::FileByFilename(name)) if name == FILE => described(),
        Some(MessageRequest::FileContainingSymbol(name)) if name.starts_with(PACKAGE) => {
            described()
        }
        Some(MessageRequest::FileByFilename(name) | MessageRequest::FileContainingSymbol(name)) => {
            unknown(name)
        }
        None => unknown("this question"),
    };
    let answer = proto::ServerReflectionResponse {
        valid_host: question.host.clone(),
        original_request: Some(question),
        message_response: Some(answer),
    };
    Ok(answer.encode_to_vec())
}
