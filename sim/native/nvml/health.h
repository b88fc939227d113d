#ifndef SIM_NVML_HEALTH_H
#define SIM_NVML_HEALTH_H

#include "library.h"

/* Memory error counts: type 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate. */
u64 ecc_dram(const struct device *device, int type, int counter);
u64 ecc_total(const struct device *device, int type, int counter);

#endif
