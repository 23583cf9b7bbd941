/** @file cupti_sim.h
 * Inside the simulated CUPTI: its way to the simulated driver.
 */
#ifndef RPSIM_CUPTI_SIM_H
#define RPSIM_CUPTI_SIM_H

#include <cupti.h>

#include "../cuda/tools.h"

#define SIM_EXPORT __attribute__((visibility("default")))

/** The driver's tools interface, or NULL without a simulated driver. Looks again each time until it finds
 * one. */
const struct rpsim_tools *sim_tools(void);
/** Keeps the answer for cuptiGetLastError of this thread, and returns it. */
CUptiResult sim_answer(CUptiResult result);

#endif
