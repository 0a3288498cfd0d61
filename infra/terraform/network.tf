# A network of its own: nodes have no public addresses and reach registries through NAT, Google's services directly.
resource "google_compute_network" "headrace" {
  name                    = var.name
  auto_create_subnetworks = false

  depends_on = [google_project_service.used]
}

resource "google_compute_subnetwork" "nodes" {
  name                     = "${var.name}-nodes"
  network                  = google_compute_network.headrace.id
  region                   = var.region
  ip_cidr_range            = "10.0.0.0/20"
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = "10.4.0.0/14"
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = "10.8.0.0/20"
  }
}

resource "google_compute_router" "headrace" {
  name    = var.name
  network = google_compute_network.headrace.id
  region  = var.region
}

resource "google_compute_router_nat" "headrace" {
  name                               = var.name
  router                             = google_compute_router.headrace.name
  region                             = var.region
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}
