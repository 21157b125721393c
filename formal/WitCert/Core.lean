import WitCert.Core.Order
import WitCert.Core.Sum
import WitCert.Core.Abs
import WitCert.Core.Exp
