/** @file config.h
 * Configuration: one table of RECVPOOL_* variables (name, type, range, default, help), read once before
 * threads start. `recvpool run` turns its options into these variables, so both ways in mean the same.
 */
#ifndef RP_AGENT_CONFIG_H
#define RP_AGENT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/pool.h"
#include "recvpool/status.h"

#define RP_CONFIG_MAX_SLOTS 65536u

/** What the agent does: measure, really share memory, or nothing. */
enum rp_mode { RP_MODE_OBSERVE = 0, RP_MODE_OFF = 1, RP_MODE_ENFORCE = 2 };
/** Who holds the CUPTI subscription: the agent, others, or the agent until its pool is on. */
enum rp_cupti_policy { RP_CUPTI_ALWAYS = 0, RP_CUPTI_OFF = 1, RP_CUPTI_LEARN = 2 };

struct rp_config {
  enum rp_mode mode;          /**< RECVPOOL_MODE = observe | enforce | off */
  char report_dir[4096];      /**< RECVPOOL_REPORT_DIR; resolved default, see rp_config_default_report_dir */
  double interval_seconds;    /**< RECVPOOL_INTERVAL = 0.05 .. 3600, default 5 */
  uint64_t min_bytes;         /**< RECVPOOL_MIN_BYTES, bytes or 64KiB / 1MiB …, default 64KiB */
  uint32_t slack;             /**< RECVPOOL_SLACK = 0 .. 1024, default 2; with slack_auto: to begin with */
  uint64_t headroom_bytes;    /**< RECVPOOL_HEADROOM, default 0: kept back of each size that shares */
  bool slack_auto;            /**< RECVPOOL_SLACK = auto: the agent finds the smallest that is enough */
  bool verbose;               /**< RECVPOOL_VERBOSE = 0 | 1 */
  enum rp_cupti_policy cupti; /**< RECVPOOL_CUPTI = always | learn | off */
  char plan_path[4096];       /**< RECVPOOL_PLAN = file, absolute; "" = none */
  int32_t plan_rank;     /**< RECVPOOL_PLAN_RANK: which rank of the plan this process is; -1 = not said */
  uint64_t buffer_bytes; /**< RECVPOOL_BUFFER_BYTES: only receives of this size; 0 = any */
  uint32_t slots;        /**< RECVPOOL_SLOTS = 1 .. 65536: least K once learned; 0 = not said */
  enum rp_pool_policy on_violation; /**< RECVPOOL_ON_VIOLATION = report | fallback | abort */
  bool strict;                      /**< RECVPOOL_STRICT = 0 | 1 */
  char run[64];                     /**< RECVPOOL_RUN: which `recvpool run` started the job; "" = none */
  /** Why less is done than was asked for: the environment contradicts itself, and the values for enforcing
   * were put back to their defaults. "contradiction: sentence", or "". */
  char problem[256];
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
 * for all of them, "" if there is none, cut to size); unknown RECVPOOL_ names are described too. Values that
 * contradict each other (rp_config_check) make it observe, see rp_config.problem. Never fails.
 * Reads the environment only, allocates nothing; call it before threads may call setenv. */
void rp_config_from_environment(struct rp_config *config, char *warnings, size_t warnings_size);
/** The same without a look at contradictions. */
void rp_config_read_environment(struct rp_config *config, char *warnings, size_t warnings_size);

/** Checks and parses the value for one variable (as the command does with its options). On RP_ERROR_INVALID,
 * `message` says what the value must be ("must be …"); RP_ERROR_NOT_FOUND: no such variable. A failure leaves
 * `config` as it was. */
rp_status rp_config_set(struct rp_config *config, const char *variable, const char *value, char *message,
                        size_t message_size);

/** Whether the values can be meant together. RP_ERROR_INVALID: `message` names two that contradict each other
 * and the mend, by the names of variables or, where `options`, of the options of `recvpool run`. Reads no
 * file. */
rp_status rp_config_check(const struct rp_config *config, bool options, char *message, size_t message_size);

/** Words as the variables have them, never NULL. */
const char *rp_mode_name(enum rp_mode mode);
const char *rp_on_violation_name(enum rp_pool_policy policy);
const char *rp_cupti_policy_name(enum rp_cupti_policy policy);

/** $XDG_RUNTIME_DIR/recvpool, else /run/recvpool for root, else /tmp/recvpool-UID. */
void rp_config_default_report_dir(char *out, size_t out_size);

/** Parses "65536", "64KiB", "1.5GiB", "436MiB", "10MB". RP_ERROR_INVALID if it is none, or overflows. */
rp_status rp_parse_bytes(const char *text, uint64_t *out_bytes);

#endif
