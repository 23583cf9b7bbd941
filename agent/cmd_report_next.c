/* What to do next about a job, in one sentence: what is unsafe comes first, then what is missing for an
 * answer, then what there is to gain. */
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_text.h"
#include "pool/tracker.h"

/* The first report of the job with something to name. */
static const char *first_text(const struct rp_read_set *set, size_t job,
                              const char *(*get)(const struct rp_read_digest *digest)) {
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  for (size_t i = first; i < end; i++)
    if (get(set->reports[i].digest)) return get(set->reports[i].digest);
  return NULL;
}

static bool has_ended(const struct rp_read_set *set, size_t job) {
  size_t first, end;
  rp__job_range(set, job, &first, &end);
  for (size_t i = first; i < end; i++)
    if (!set->reports[i].digest->finished && !set->reports[i].ended) return false;
  return true;
}

static const char *get_violation(const struct rp_read_digest *digest) {
  return digest->violation;
}

static const char *get_unshared(const struct rp_read_digest *digest) {
  return digest->unshared;
}

/* Reasons that no longer run and no setting changes. */
static bool has_nothing_to_gain(const char *unshared) {
  static const enum rp_reason reasons[] = {RP_REASON_UNBOUNDED_DEPTH, RP_REASON_WITHIN_SLACK,
                                           RP_REASON_JUST_IN_TIME};
  if (strncmp(unshared, "rounding:", 9) == 0) return true;
  for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
    const char *name = rp_reason_name(reasons[i]);
    size_t length = strlen(name);
    if (strncmp(unshared, name, length) == 0 && unshared[length] == ':') return true;
  }
  return false;
}

/* A plan is of one job, which has to be named where there are several. */
static void advise_plan(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  char choice[48] = "";
  if (set->jobs_found > 1) snprintf(choice, sizeof choice, " --job %zu", rp_report_number(set, job));
  snprintf(out, out_size,
           "Make a plan with recvpool report%s --plan FILE DIR, and run with recvpool run --mode enforce "
           "--plan FILE.",
           choice);
}

/* What ended a job before it could be learned from: false if it was not for want of memory. */
static bool after_refusals(const struct rp_read_set *set, size_t job, const struct rp__summary *summary,
                           const struct rp__enforced *sum, char *out, size_t out_size) {
  char bytes[32];
  bool learned = sum->processes ? sum->sharing > 0 : summary->channels > 0 && !summary->too_few;
  if (!summary->allocations_refused || learned || sum->violations || !has_ended(set, job)) return false;
  snprintf(
      out, out_size,
      "The device had no memory for %s more. Make a plan of the job's schedule (recvpool plan --schedule) or "
      "of a run with fewer microbatches: with it buffers share from the first step on.",
      rp__format_bytes(summary->refused_bytes, bytes, sizeof bytes));
  return true;
}

/* Memory is shared in all processes. */
static void after_sharing(const struct rp__enforced *sum, char *out, size_t out_size) {
  if (sum->untold)
    snprintf(out, out_size,
             "Nothing to gain: memory is shared already; what was unsafe the agent's own report tells, which "
             "attach did not find.");
  else if (sum->double_frees)
    snprintf(out, out_size, "Memory is shared; look at the program, which frees addresses twice.");
  else if (sum->misfits)
    snprintf(
        out, out_size,
        "The plan does not fit this run (see the reasons above): make a new one, from a run of this job.");
  else if (sum->serious && sum->saved_peak_bytes == 0)
    snprintf(out, out_size, "Memory was shared for a while only; look at what was prevented.");
  else if (sum->serious)
    snprintf(out, out_size,
             "Memory is shared; look at what was prevented, since it may cost memory or hide a mistake.");
  else
    snprintf(out, out_size,
             "Nothing to do: memory is shared, and nothing unsafe came too late to be prevented.");
}

static void after_switching_off(const struct rp__enforced *sum, char *out, size_t out_size) {
  char off[160];
  snprintf(
      out, out_size, "Sharing was switched off (switched_off) in %s%s.", rp__format_off(sum, off, sizeof off),
      sum->not_yet_off ? ""
                       : ", and stays off in each until it is started again without a file that says so");
}

static void after_enforcing(const struct rp_read_set *set, size_t job, const struct rp__summary *summary,
                            const struct rp__enforced *sum, char *out, size_t out_size) {
  const char *violation = first_text(set, job, get_violation), *unshared = first_text(set, job, get_unshared);
  size_t asked = sum->processes > sum->bystanders ? sum->processes - sum->bystanders : sum->processes;
  if (sum->violations)
    snprintf(
        out, out_size,
        "Do not trust what the job computed since; look at this violation: %s, whose two sides its report "
        "names.",
        violation ? violation : "see the reports");
  else if (sum->unclear)
    snprintf(
        out, out_size,
        "Compare what the job computed with a run without enforce: launches were given buffers whose data "
        "was gone (unclear_access, see above), and if one of them read it, it read something else.");
  else if (sum->switched_off)
    after_switching_off(sum, out, out_size);
  else if (sum->saved_peak_bytes < 0)
    snprintf(out, out_size,
             "Run it without enforce%s: rounding sizes up to the pieces in which the device gives memory "
             "takes more "
             "than sharing gives.",
             sum->headroom_peak_bytes ? ", or with less --headroom" : "");
  else if (sum->sharing == asked)
    after_sharing(sum, out, out_size);
  else if (unshared && strncmp(unshared, "rounding:", 9) == 0 && !sum->sharing && summary->whole_saved_bytes)
    advise_plan(set, job, out, out_size);
  else if (unshared && has_nothing_to_gain(unshared) && !sum->sharing)
    snprintf(out, out_size, "Nothing to gain from sharing (%.*s): run it without enforce.",
             (int)strcspn(unshared, ":"), unshared);
  else if (unshared && has_nothing_to_gain(unshared))
    snprintf(out, out_size,
             "Nothing to do: memory is shared in %zu of %zu processes, and others have nothing to "
             "gain (%.*s).",
             sum->sharing, asked, (int)strcspn(unshared, ":"), unshared);
  else if (unshared)
    snprintf(out, out_size, "Sharing was asked for in %zu process%s and happens in %zu; look at %s", asked,
             asked == 1 ? "" : "es", sum->sharing, unshared);
  else if (sum->serious)
    snprintf(out, out_size,
             "Sharing was asked for in %zu process%s and lasted in %zu; look at what was prevented.", asked,
             asked == 1 ? "" : "es", sum->sharing);
  else if (!sum->sharing && summary->channels && !summary->saved_bytes && !summary->too_few)
    snprintf(out, out_size, "Nothing can be shared, as the decision column says: run it without enforce.");
  else
    snprintf(out, out_size, "Sharing was asked for in %zu process%s and happens in %zu; %s.", asked,
             asked == 1 ? "" : "es", sum->sharing,
             has_ended(set, job) ? "the job ended before the others could" : "let the job run on");
}

static void after_observing(const struct rp_read_set *set, size_t job, const struct rp__summary *summary,
                            const struct rp__enforced *sum, char *out, size_t out_size) {
  const char *text;
  if (summary->channels == 0 && summary->small_receives)
    text = "Nothing to gain from receives this small; to have them counted, set --min-bytes lower.";
  else if (summary->channels == 0)
    text = "Let the job train for two steps; if it does already, recvpool doctor and the notes say what is "
           "missing.";
  else if (summary->too_few) /* of which no plan is made either */
    text = has_ended(set, job) ? "Run it again for some more steps: two whole ones have to be seen."
                               : "Let the job train for two more steps, and ask again.";
  else if (summary->saved_bytes == 0 && summary->unseen)
    text = summary->outside
               ? "No use of the receive buffers was seen: observe with recvpool attach --launches, "
                 "or run some steps under recvpool run."
               : "No use of the receive buffers was seen; recvpool doctor and the notes say what "
                 "is missing.";
  else if (summary->saved_bytes == 0)
    text = "Nothing to gain: leave the job as it is.";
  else if (summary->whole_saved_bytes == 0)
    text = "Nothing to gain from buffers this small: leave the job as it is.";
  else if (summary->outside)
    text = "Run some steps under recvpool run, or with recvpool run --mode enforce: what attach saw is not "
           "enough for a plan.";
  else if (summary->estimate)
    text = "Run it once under recvpool run, which sees exactly what this estimates.";
  else if (sum->would_miss)
    text = "Do not enforce it as it is: buffers are used when their data would be gone, and enforcing would "
           "notice "
           "that too late (see above).";
  else if (sum->would_prevent)
    text = "Before enforcing, look at what it would have had to prevent: a buffer was used again too early.";
  else
    text = NULL;
  if (text)
    snprintf(out, out_size, "%s", text);
  else
    advise_plan(set, job, out, out_size);
}

void rp_report_next_step(const struct rp_read_set *set, size_t job, char *out, size_t out_size) {
  struct rp__summary summary;
  struct rp__enforced sum;
  rp__summary_sum(set, job, &summary);
  rp__enforced_sum(set, job, &sum);
  if (after_refusals(set, job, &summary, &sum, out, out_size)) return;
  if (sum.processes)
    after_enforcing(set, job, &summary, &sum, out, out_size);
  else
    after_observing(set, job, &summary, &sum, out, out_size);
}
