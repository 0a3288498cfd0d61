output "bucket" {
  description = "The bucket of all runs."
  value       = google_storage_bucket.runs.name
}

output "pipeline_root" {
  description = "Below it lies everything that runs write: `headrace submit --pipeline-root`."
  value       = "gs://${google_storage_bucket.runs.name}/runs"
}

output "image_repository" {
  description = "Where images are pushed to: REPOSITORY/NAME:TAG."
  value       = "${var.region}-docker.pkg.dev/${var.project_id}/${google_artifact_registry_repository.images.repository_id}"
}

output "service_accounts" {
  description = "The Google accounts of the steps (runner), of the user interface (ui) and of the nodes."
  value = merge(
    { for name, account in google_service_account.workload : name => account.email },
    { nodes = google_service_account.nodes.email }
  )
}

output "tpu_node_pools" {
  description = "The TPU node pools: machine, topology, hosts and chips of a slice, and how far each grows."
  value = {
    for name, pool in local.tpu_node_pools : name => {
      type         = pool.type
      topology     = pool.topology
      machine_type = pool.machine_type
      chips        = pool.hosts * pool.chips_per_host
      hosts        = pool.hosts
      max_nodes    = pool.max_nodes
      capacity     = pool.capacity
      zone         = pool.zone
    }
  }
}

output "credentials_command" {
  description = "Lets kubectl into the cluster, by its DNS name."
  value = join(" ", [
    "gcloud container clusters get-credentials", google_container_cluster.headrace.name,
    "--project", var.project_id, "--location", var.region, "--dns-endpoint"
  ])
}

output "settings" {
  description = "infra/kubernetes/overlays/gke/settings.env: what the overlay has to know of the cloud."
  value       = <<-EOT
    pipeline_root=gs://${google_storage_bucket.runs.name}/runs
    runner_email=${google_service_account.workload["runner"].email}
    ui_email=${google_service_account.workload["ui"].email}
  EOT
}
