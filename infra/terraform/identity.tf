# Who may do what. Nobody holds a key: pods act as these accounts by the name of their Kubernetes service account.
locals {
  namespace = "kubeflow"

  workloads = {
    # Steps and their launchers: read, write and delete objects of the one bucket; neither its settings nor its rights.
    runner = {
      kubernetes_account = "pipeline-runner"
      bucket_role        = "roles/storage.objectUser"
    }
    # The user interface shows artifacts.
    ui = {
      kubernetes_account = "ml-pipeline-ui"
      bucket_role        = "roles/storage.objectViewer"
    }
  }
}

resource "google_service_account" "workload" {
  for_each = local.workloads

  account_id   = "${var.name}-${each.key}"
  display_name = "Pods of ${local.namespace}/${each.value.kubernetes_account}"

  depends_on = [google_project_service.used]
}

resource "google_service_account_iam_member" "workload_identity" {
  for_each = local.workloads

  service_account_id = google_service_account.workload[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project_id}.svc.id.goog[${local.namespace}/${each.value.kubernetes_account}]"

  # The project's identity pool is born with its first cluster.
  depends_on = [google_container_cluster.headrace]
}

# Nodes: send logs and metrics, pull images (registry.tf). Pods cannot act as it (GKE_METADATA in pools.tf).
resource "google_service_account" "nodes" {
  account_id   = "${var.name}-nodes"
  display_name = "Nodes of the cluster ${var.name}"

  depends_on = [google_project_service.used]
}

resource "google_project_iam_member" "nodes_report" {
  project = var.project_id
  role    = "roles/container.defaultNodeServiceAccount"
  member  = google_service_account.nodes.member
}
