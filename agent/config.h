/** @file config.h
 * Configuration: one table of RECVPOOL_* variables (name, type, range, default, help), read once before
 * threads start. `recvpool run` turns its options into these variables, so both ways in mean the same.
 */
#ifndef RP_AGENT_CONFIG_H
#define RP_AGENT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recvpool/status.h"

enum rp_mode { RP_MODE_OBSERVE = 0, RP_MODE_OFF = 1 };
/** Who holds the CUPTI subscription: the agent, or others. */
enum rp_cupti_policy { RP_CUPTI_ALWAYS = 0, RP_CUPTI_OFF = 1 };

struct rp_config {
  enum rp_mode mode;          /**< RECVPOOL_MODE = observe | off */
  char report_dir[4096];      /**< RECVPOOL_REPORT_DIR; resolved default, see rp_config_default_report_dir */
  double interval_seconds;    /**< RECVPOOL_INTERVAL = 0.05 .. 3600, default 5 */
  uint64_t min_bytes;         /**< RECVPOOL_MIN_BYTES, bytes or 64KiB / 1MiB …, default 64KiB */
  uint32_t slack;             /**< RECVPOOL_SLACK = 0 .. 1024, default 2 */
  bool verbose;               /**< RECVPOOL_VERBOSE = 0 | 1 */
  enum rp_cupti_policy cupti; /**< RECVPOOL_CUPTI = always | off */
};

/** One row of the table of variables, for help texts. Strings are static. */
struct rp_config_variable {
  const char *name;         /**< "RECVPOOL_…" */
  const char *values;       /**< the form of its value */
  const char *default_text; /**< what holds when it is not set */
  const char *help;
};

/** Row `index` of the table, or NULL past its end. Thread-safe. */
const struct rp_config_variable *rp_config_variable(size_t index);

/** Fills in the defaults. */
void rp_config_defaults(struct rp_config *config);

/** Reads the environment. Nonsense keeps the default of its variable and is described in `warnings` (one line
 * for all of them, "" if there is none, cut to size); unknown RECVPOOL_ names are described too. Never fails.
 * Reads the environment only, allocates nothing; call it before threads may call setenv. */
void rp_config_from_environment(struct rp_config *config, char *warnings, size_t warnings_size);

/** Checks and parses the value for one variable (as the command does with its options). On RP_ERROR_INVALID,
 * `message` says what the value must be ("must be …"); RP_ERROR_NOT_FOUND: no such variable. A failure leaves
 * `config` as it was. */
rp_status rp_config_set(struct rp_config *config, const char *variable, const char *value, char *message,
                        size_t message_size);

/** $XDG_RUNTIME_DIR/recvpool, else /run/recvpool for root, else /tmp/recvpool-UID. */
void rp_config_default_report_dir(char *out, size_t out_size);

/** Parses "65536", "64KiB", "1.5GiB", "436MiB", "10MB". RP_ERROR_INVALID if it is none, or overflows. */
rp_status rp_parse_bytes(const char *text, uint64_t *out_bytes);

#endif
