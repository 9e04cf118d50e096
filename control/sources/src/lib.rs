//! Where the control plane's objects come from: files, later Kubernetes.
