#ifndef SIM_NVML_PCI_H
#define SIM_NVML_PCI_H

#include "api.h"

/* Sets address and names from "00000000:3B:00.0". The ids stay 0. */
void pci_parse(const char *bus_id, struct pci_info_v3 *out);

#endif
