resource "google_container_cluster" "headrace" {
  name                = var.name
  location            = var.region
  node_locations      = [var.zone]
  deletion_protection = var.deletion_protection
  resource_labels     = var.labels

  network           = google_compute_network.headrace.id
  subnetwork        = google_compute_subnetwork.nodes.id
  networking_mode   = "VPC_NATIVE"
  datapath_provider = "ADVANCED_DATAPATH" # the network policy of sandboxes is kept by it

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  private_cluster_config {
    enable_private_nodes = true
  }

  # People and CI come by name and are let in by IAM; addresses are open only to networks that are named.
  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = true
    }
    ip_endpoints_config {
      enabled = length(var.authorized_networks) > 0
    }
  }

  dynamic "master_authorized_networks_config" {
    for_each = length(var.authorized_networks) > 0 ? [var.authorized_networks] : []
    content {
      dynamic "cidr_blocks" {
        for_each = master_authorized_networks_config.value
        content {
          display_name = cidr_blocks.key
          cidr_block   = cidr_blocks.value
        }
      }
    }
  }

  release_channel {
    channel = var.release_channel
  }

  maintenance_policy {
    recurring_window {
      start_time = var.maintenance.start_time
      end_time   = var.maintenance.end_time
      recurrence = var.maintenance.recurrence
    }
  }

  workload_identity_config {
    workload_pool = "${var.project_id}.svc.id.goog"
  }

  # Idle accelerators leave as soon as may be.
  cluster_autoscaling {
    autoscaling_profile = "OPTIMIZE_UTILIZATION"
  }

  cost_management_config {
    enabled = true
  }

  logging_config {
    enable_components = ["SYSTEM_COMPONENTS", "WORKLOADS"]
  }

  monitoring_config {
    enable_components = ["SYSTEM_COMPONENTS"]
  }

  # The first pool cannot be left out, only removed; until then it, too, runs as the nodes' account.
  remove_default_node_pool = true
  initial_node_count       = 1

  node_config {
    service_account = google_service_account.nodes.email
  }

  lifecycle {
    ignore_changes = [node_config]
  }

  depends_on = [google_project_iam_member.nodes_report]
}
