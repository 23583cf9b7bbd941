/* Which stage a channel is of. The agent counts the stages of its rank; a plan has the numbers of the whole
 * pipeline, and where it has shared buffers by them, these are the ones to show. */
#include <stdio.h>
#include <string.h>

#include "agent/cmd_report_digest.h"
#include "agent/cmd_report_text.h"

static void add_bindings(json_t *stages, const json_t *class, const char *key) {
  const json_t *stage = json_object_get(class, "stage"), *binding;
  size_t i;
  json_array_foreach(json_object_get(class, key), i, binding) {
    const char *address = json_string_value(json_object_get(binding, "address"));
    if (address) (void)json_object_set_new(stages, address, json_integer(json_integer_value(stage)));
  }
}

json_t *rp__planned_stages(const json_t *report) {
  const json_t *enforcement = json_object_get(report, "enforcement"), *device, *class;
  json_t *stages = NULL;
  size_t d, c;
  if (strcmp(rp__text_of(enforcement, "mode", ""), "enforce") != 0) return NULL;
  json_array_foreach(json_object_get(enforcement, "devices"), d, device) {
    if (!json_is_true(json_object_get(device, "planned"))) continue;
    if (!stages) stages = json_object();
    json_array_foreach(json_object_get(device, "classes"), c, class) {
      if (!json_is_integer(json_object_get(class, "stage"))) continue;
      add_bindings(stages, class, "last_bindings");
      add_bindings(stages, class, "bindings");
    }
  }
  return stages;
}

/* That all buffers of the channel have which shared; NULL: none has, or they differ. */
static const json_t *stage_of_buffers(const json_t *channel, const json_t *stages) {
  const json_t *found = NULL, *life;
  size_t i;
  json_array_foreach(json_object_get(channel, "lifetimes"), i, life) {
    const json_t *stage = json_object_get(stages, rp__text_of(life, "address", ""));
    if (stage && found && !json_equal(stage, found)) return NULL;
    if (stage) found = stage;
  }
  return found;
}

const char *rp__format_stage(const json_t *channel, const json_t *stages, char *out, size_t out_size) {
  const json_t *stage = stages ? stage_of_buffers(channel, stages) : NULL;
  unsigned long long nth = rp__count_of(channel, "stage_ordinal");
  if (stage)
    snprintf(out, out_size, "%lld", (long long)json_integer_value(stage));
  else
    snprintf(out, out_size, stages ? "#%llu" : "%llu", nth);
  return out;
}
