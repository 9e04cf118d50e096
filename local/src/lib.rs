//! leno up: workloads as processes in network namespaces.
