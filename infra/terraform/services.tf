locals {
  services = toset([
    "artifactregistry.googleapis.com",     # images
    "cloudresourcemanager.googleapis.com", # the one right over the project (identity.tf)
    "compute.googleapis.com",              # network, nodes, TPUs
    "container.googleapis.com",            # the cluster
    "iam.googleapis.com",                  # service accounts
    "iamcredentials.googleapis.com",       # tokens for pods that act as a service account
    "logging.googleapis.com",              # what pods print
    "monitoring.googleapis.com",           # what nodes use
    "storage.googleapis.com",              # runs
  ])
}

# Others in the project may use them, too: a teardown leaves them on. They cost nothing.
resource "google_project_service" "used" {
  for_each = local.services

  service            = each.value
  disable_on_destroy = false
}
