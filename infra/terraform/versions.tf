# 1.9 lets the check of one variable look at others and at locals. The state holds names and settings, no secrets; it
# lies in a bucket that is made by hand, so that no laptop is its only home.
terraform {
  required_version = ">= 1.9"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.22, < 8.0"
    }
  }

  backend "gcs" {
    prefix = "headrace"
  }
}

provider "google" {
  project = var.project_id
  region  = var.region
}
