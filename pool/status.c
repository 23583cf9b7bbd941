/* The texts of rp_status. */
#include "recvpool/status.h"

const char *rp_status_text(rp_status status) {
  switch (status) {
  case RP_OK:
    return "success";
  case RP_ERROR_NO_MEMORY:
    return "out of host memory";
  case RP_ERROR_INVALID:
    return "invalid argument";
  case RP_ERROR_NOT_FOUND:
    return "not found";
  case RP_ERROR_EXISTS:
    return "exists already";
  case RP_ERROR_LIMIT:
    return "a stated limit is reached";
  case RP_ERROR_SYNTAX:
    return "syntax error";
  case RP_ERROR_SCHEDULE:
    return "the schedule cannot be run";
  case RP_ERROR_VERSION:
    return "unknown version";
  case RP_ERROR_IO:
    return "reading or writing failed";
  case RP_ERROR_UNAVAILABLE:
    return "not available on this machine";
  case RP_ERROR_BUSY:
    return "held by somebody else";
  case RP_ERROR_STATE:
    return "not possible in this state";
  case RP_ERROR_INTERNAL:
    return "internal error";
  }
  return "unknown status";
}
