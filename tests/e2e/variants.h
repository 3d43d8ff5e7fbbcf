// Every way in which one field of a message can be wrong: zeros, limits and their neighbours, the
// ends of each type, absent, empty, very long, unknown enum numbers, repeated elements.
#pragma once

#include <google/protobuf/message.h>

#include <functional>
#include <string>

namespace kvstream {

// Calls `use` with `valid` changed in one field at a time, nested messages included, and with the
// name of the change. Which changes, follows from the message alone.
void ForEachVariant(
    const google::protobuf::Message& valid,
    const std::function<void(const std::string& what, const google::protobuf::Message&)>& use);

}  // namespace kvstream
